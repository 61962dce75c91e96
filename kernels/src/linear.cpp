// Cuts a product into tasks of two panels and some rows, which threads take as they come.
#include "dualpace/linear.h"

#include <algorithm>

#include "dualpace/attention_memory.h"
#include "dualpace/team.h"

namespace dualpace {
namespace {

// Fewest rows that are worth reading a panel for once more.
constexpr std::int64_t kLeastRows = 24;
// Tasks for each thread that even out what threads lose to neighbours.
constexpr std::int64_t kTasksPerThread = 3;

class Tasks {
  public:
    Tasks(const MatrixView& matrix, std::int64_t rows, bool gated, int threads)
        : rows_(rows), panels_(matrix.num_panels()), gated_(gated) {
        pairs_ = gated ? panels_ / 2 : (panels_ + 1) / 2;
        const std::int64_t wanted = (kTasksPerThread * threads + pairs_ - 1) / pairs_;
        const std::int64_t allowed = (rows + kLeastRows - 1) / kLeastRows;
        const std::int64_t needed = (rows + kMaxTileRows - 1) / kMaxTileRows;
        groups_ = std::max(needed, std::min(wanted, allowed));
    }

    std::int64_t count() const { return pairs_ * groups_; }
    std::int64_t pair(std::int64_t task) const { return task / groups_; }
    std::int64_t first_row(std::int64_t task) const { return task % groups_ * rows_ / groups_; }
    std::int64_t end_row(std::int64_t task) const { return (task % groups_ + 1) * rows_ / groups_; }

    PanelPair panels(std::int64_t task) const {
        const std::int64_t p = pair(task);
        if (gated_) return {p, p + panels_ / 2};
        return {2 * p, std::min(2 * p + 1, panels_ - 1)};
    }

  private:
    std::int64_t rows_;
    std::int64_t panels_;
    bool gated_;
    std::int64_t pairs_;
    std::int64_t groups_;
};

const float* panel_bias(const PackedLinear& linear, std::int64_t panel) {
    return linear.bias() == nullptr ? nullptr : linear.bias() + panel * kPanelOutputs;
}

void finish_task(const PackedLinear& linear, const LinearOutput& output, const Tasks& tasks,
                 std::int64_t task, const float* tile, const DenseKernels& kernels) {
    const bool gated = output.finish == Finish::kGate;
    const PanelPair panels = tasks.panels(task);
    const std::int64_t first = panels.first * kPanelOutputs;
    const std::int64_t outputs = gated ? linear.matrix().outputs / 2 : linear.matrix().outputs;
    FinishTask finish{};
    finish.tile = tile;
    finish.rows = tasks.end_row(task) - tasks.first_row(task);
    finish.finish = output.finish;
    finish.activation = output.activation;
    finish.first_bias = panel_bias(linear, panels.first);
    finish.second_bias = panel_bias(linear, panels.second);
    finish.out = output.out + tasks.first_row(task) * output.out_stride + first;
    finish.out_stride = output.out_stride;
    finish.outputs = std::min(gated ? kPanelOutputs : kTileOutputs, outputs - first);
    kernels.finish(finish);
}

}  // namespace

void run_linear(const PackedLinear& linear, const LinearInput& input, const LinearOutput& output,
                const DenseKernels& kernels, const Team& team, Ticket& ticket) {
    const Tasks tasks(linear.matrix(), input.rows, output.finish == Finish::kGate, team.count);
    alignas(64) float tile[kMaxTileRows * kTileOutputs];
    const auto rounded_product = rounded_product_for(kernels, linear.matrix());
    const bool rounded = input.rounded != nullptr && rounded_product != nullptr;
    std::int64_t next = ticket.take();
    while (next < tasks.count()) {
        const std::int64_t task = next;
        next = ticket.take();
        const std::int64_t row = tasks.first_row(task);
        ProductTask product{};
        product.x = input.x + row * input.x_stride;
        product.x_stride = input.x_stride;
        product.rounded = rounded ? input.rounded + row * input.rounded_stride : nullptr;
        product.rounded_stride = input.rounded_stride;
        product.rows = tasks.end_row(task) - row;
        product.matrix = &linear.matrix();
        product.panels = tasks.panels(task);
        product.upcoming = next < tasks.count() ? tasks.panels(next) : product.panels;
        product.tile = tile;
        (rounded ? rounded_product : kernels.product)(product);
        finish_task(linear, output, tasks, task, tile, kernels);
    }
}

void linear(const PackedLinear& linear, const float* x, std::int64_t x_stride, std::int64_t rows,
            float* out, std::int64_t out_stride, bool rounding, int num_threads, Isa isa) {
    thread_local Scratch scratch;
    if (rows == 0) return;
    const DenseKernels& kernels = dense_kernels(isa);
    const std::int64_t inputs = linear.matrix().inputs;
    LinearInput input{x, x_stride, nullptr, round_up(inputs, kTileInputs), rows};
    BFloat16* rounded = nullptr;
    if (rounding && rounded_product_for(kernels, linear.matrix()) != nullptr) {
        rounded = reinterpret_cast<BFloat16*>(scratch.reserve(rows * input.rounded_stride / 2));
        input.rounded = rounded;
    }
    const LinearOutput output{Finish::kStore, Activation::kSilu, out, out_stride};
    Ticket ticket;
    run_team(num_threads, [&](const Team& team) {
        if (rounded != nullptr) {
            for (std::int64_t row = team.index; row < rows; row += team.count) {
                BFloat16* to = rounded + row * input.rounded_stride;
                kernels.store(x + row * x_stride, inputs, ElementType::kBFloat16, to);
                std::fill(to + inputs, to + input.rounded_stride, BFloat16{0});
            }
            team.wait();
        }
        run_linear(linear, input, output, kernels, team, ticket);
    });
}

std::int64_t multiply_adds(std::int64_t steps, bool rounding, int num_threads, Isa isa) {
    const DenseKernels& kernels = dense_kernels(isa);
    const auto peak = rounding ? kernels.rounded_peak : kernels.peak;
    if (peak == nullptr) return 0;
    std::atomic<std::int64_t> operations{0};
    run_team(num_threads, [&](const Team&) {
        float kept = 0.0f;
        operations += peak(steps, &kept);
        // Looks at the result, so that it must be computed.
        if (kept == -1.0f) operations = 0;
    });
    return operations;
}

}  // namespace dualpace
