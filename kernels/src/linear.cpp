// Cuts a product into tasks of two panels and some rows, which threads take as they come.
#include "dualpace/linear.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "dualpace/scratch.h"
#include "dualpace/team.h"

namespace dualpace {
namespace {

// Fewest rows that are worth reading a panel for once more.
constexpr std::int64_t kLeastRows = 24;
// Most rows of a task on vectors: so many that their sums stay in the first cache beside weights.
constexpr std::int64_t kMostVectorRows = 64;
// Tasks for each thread that even out what threads lose to neighbours.
constexpr std::int64_t kTasksPerThread = 24;

constexpr std::string_view kArithmetics[] = {"float32", "bfloat16", "int16"};

class Tasks {
  public:
    Tasks(const MatrixView& matrix, std::int64_t rows, std::int64_t most_rows, bool gated,
          int threads)
        : rows_(rows), panels_(matrix.num_panels()), gated_(gated) {
        pairs_ = gated ? panels_ / 2 : (panels_ + 1) / 2;
        const std::int64_t wanted = (kTasksPerThread * threads + pairs_ - 1) / pairs_;
        const std::int64_t allowed = (rows + kLeastRows - 1) / kLeastRows;
        const std::int64_t needed = (rows + most_rows - 1) / most_rows;
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

// The product that takes activations rounded to bfloat16, or null where these kernels have none for
// this matrix.
auto rounded_product_for(const DenseKernels& kernels, const MatrixView& matrix) {
    const bool pairs = matrix.format == MatrixFormat::kInt8 && matrix.inputs % 2 == 0;
    if (matrix.format == MatrixFormat::kBFloat16) return kernels.rounded_product;
    return pairs ? kernels.rounded_quantised_product : nullptr;
}

bool takes_quanta(const DenseKernels& kernels, const MatrixView& matrix, bool rounding) {
    if (matrix.format == MatrixFormat::kInt16) return true;
    const bool whole_groups = matrix.group == matrix.inputs || matrix.group % kTileInputs == 0;
    return rounding && matrix.format == MatrixFormat::kInt8 && matrix.inputs % 2 == 0 &&
           whole_groups && kernels.fast_quanta && kernels.rounded_quantised_product == nullptr;
}

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
    const bool greatest = output.finish == Finish::kGreatest;
    finish.out = output.out + tasks.first_row(task) * output.out_stride +
                 (greatest ? tasks.pair(task) * kernels.greatest_lanes : first);
    finish.out_stride = output.out_stride;
    finish.outputs = std::min(gated ? kPanelOutputs : kTileOutputs, outputs - first);
    kernels.finish(finish);
}

}  // namespace

std::int64_t prepared_words(std::int64_t rows, std::int64_t inputs) {
    const std::int64_t stride = round_up(inputs, kTileInputs);
    return rows * (stride / 2 + stride / kTileInputs);
}

LinearInput prepare_input(const MatrixView& matrix, const float* x, std::int64_t x_stride,
                          std::int64_t rows, bool rounding, float* memory,
                          const DenseKernels& kernels, const Team& team) {
    const std::int64_t inputs = matrix.inputs;
    const std::int64_t stride = round_up(inputs, kTileInputs);
    LinearInput input{x, x_stride, rows, nullptr, stride, {}};
    if (takes_quanta(kernels, matrix, rounding)) {
        float* const scales = memory;
        const std::int64_t groups = stride / kTileInputs;
        auto* const quanta = reinterpret_cast<std::int16_t*>(memory + rows * groups);
        each_row(team, x, x_stride, inputs, rows, [&](std::int64_t row) {
            kernels.quantise(x + row * x_stride, inputs, quanta + row * stride,
                             scales + row * groups);
        });
        input.quantised = {quanta, stride, scales, groups};
    } else if (rounding && rounded_product_for(kernels, matrix) != nullptr) {
        auto* const rounded = reinterpret_cast<BFloat16*>(memory);
        each_row(team, x, x_stride, inputs, rows, [&](std::int64_t row) {
            BFloat16* const to = rounded + row * stride;
            kernels.store(x + row * x_stride, inputs, ElementType::kBFloat16, to);
            std::fill(to + inputs, to + stride, BFloat16{0});
        });
        input.rounded = rounded;
    } else {
        return input;
    }
    team.wait();
    return input;
}

void run_linear(const PackedLinear& linear, const LinearInput& input, const LinearOutput& output,
                const DenseKernels& kernels, const Team& team, Ticket& ticket, Beside* beside) {
    // Rounded rows may be multiplied on tiles.
    const std::int64_t most_rows = input.rounded != nullptr ? kMaxTileRows : kMostVectorRows;
    const Tasks tasks(linear.matrix(), input.rows, most_rows, output.finish == Finish::kGate,
                      team.count);
    alignas(64) float tile[kMaxTileRows * kTileOutputs];
    const auto multiply = input.rounded != nullptr ? rounded_product_for(kernels, linear.matrix())
                          : input.quantised.quanta != nullptr ? kernels.quantised_product
                                                              : kernels.product;
    std::int64_t next = ticket.take();
    while (next < tasks.count()) {
        const std::int64_t task = next;
        next = ticket.take();
        const std::int64_t row = tasks.first_row(task);
        ProductTask product{};
        product.x = input.x + row * input.x_stride;
        product.x_stride = input.x_stride;
        if (input.rounded != nullptr) product.rounded = input.rounded + row * input.rounded_stride;
        product.rounded_stride = input.rounded_stride;
        if (input.quantised.quanta != nullptr) product.quantised = rows_from(input.quantised, row);
        product.rows = tasks.end_row(task) - row;
        product.matrix = &linear.matrix();
        product.panels = tasks.panels(task);
        product.upcoming = next < tasks.count() ? tasks.panels(next) : product.panels;
        product.tile = tile;
        const auto multiply_adds =
            static_cast<double>(product.rows * kTileOutputs * product.matrix->inputs);
        FetchList list{};
        if (beside != nullptr) {
            list = beside->before(multiply_adds);
            product.beside = &list;
        }
        multiply(product);
        finish_task(linear, output, tasks, task, tile, kernels);
        if (beside != nullptr) beside->after(multiply_adds);
    }
}

LinearInput multiply_rows(const LinearRows& rows, const LinearOutput& output,
                          const DenseKernels& kernels, const Team& team, Ticket& ticket,
                          Beside* beside) {
    const MatrixView& matrix = rows.linear.matrix();
    const LinearInput input = prepare_input(matrix, rows.x, matrix.inputs, rows.rows, rows.rounding,
                                            rows.prepared, kernels, team);
    run_linear(rows.linear, input, output, kernels, team, ticket, beside);
    team.wait();
    return input;
}

void linear(const PackedLinear& linear, const float* x, std::int64_t x_stride, std::int64_t rows,
            float* out, std::int64_t out_stride, bool rounding, int num_threads, Isa isa) {
    thread_local Scratch scratch;
    if (rows == 0) return;
    const DenseKernels& kernels = dense_kernels(isa);
    float* const memory = scratch.reserve(prepared_words(rows, linear.matrix().inputs));
    const LinearOutput output{Finish::kStore, Activation::kSilu, out, out_stride};
    Ticket ticket;
    run_team(num_threads, [&](const Team& team) {
        const LinearInput input =
            prepare_input(linear.matrix(), x, x_stride, rows, rounding, memory, kernels, team);
        run_linear(linear, input, output, kernels, team, ticket);
    });
}

std::string_view arithmetic_name(Arithmetic arithmetic) {
    return kArithmetics[static_cast<std::size_t>(arithmetic)];
}

Arithmetic parse_arithmetic(std::string_view name) {
    const auto at = std::find(std::begin(kArithmetics), std::end(kArithmetics), name);
    if (at != std::end(kArithmetics)) return static_cast<Arithmetic>(at - std::begin(kArithmetics));
    std::string known;
    for (const std::string_view one : kArithmetics)
        known += (known.empty() ? "" : ", ") + std::string(one);
    throw std::invalid_argument("arithmetic: '" + std::string(name) + "' is not one of " + known);
}

Arithmetic narrow_arithmetic(Isa isa) {
    const DenseKernels& kernels = dense_kernels(isa);
    if (kernels.rounded_product != nullptr) return Arithmetic::kBFloat16;
    return kernels.fast_quanta ? Arithmetic::kInt16 : Arithmetic::kFloat32;
}

std::int64_t multiply_adds(std::int64_t steps, Arithmetic arithmetic, int num_threads, Isa isa) {
    const DenseKernels& kernels = dense_kernels(isa);
    const auto peak = arithmetic == Arithmetic::kFloat32    ? kernels.peak
                      : arithmetic == Arithmetic::kBFloat16 ? kernels.rounded_peak
                                                            : kernels.quantised_peak;
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
