#include "dualpace/head_screen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "dualpace/linear.h"
#include "dualpace/scratch.h"

namespace dualpace {
namespace {

constexpr double kUnitRoundoff = 0x1p-24;
constexpr std::int64_t kMostBlocks = 512;
// Sums of fp32 products stay finite where the norms of their factors multiply to less than this.
constexpr double kSurelyFinite = 1e37;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct RowNorms {
    double x = 0.0;          // 2-norm
    double error = 0.0;      // 2-norm of x less its quanta
    double quantised = 0.0;  // 1-norm of the quanta
};

RowNorms norms_of(const float* x, const QuantisedRows& row, std::int64_t inputs) {
    RowNorms norms;
    for (std::int64_t i = 0; i < inputs; ++i) {
        const double seen = double{row.scales[i / kTileInputs]} * row.quanta[i];
        const double error = x[i] - seen;
        norms.x += double{x[i]} * x[i];
        norms.error += error * error;
        norms.quantised += std::fabs(seen);
    }
    norms.x = std::sqrt(norms.x);
    norms.error = std::sqrt(norms.error);
    return norms;
}

// Looks through exact logits, two panels at a time.
class Search {
  public:
    Search(const PackedLinear& head, const float* x, const DenseKernels& kernels)
        : head_(head), x_(x), kernels_(kernels) {}

    void look_at(std::int64_t pair) {
        const MatrixView& matrix = head_.matrix();
        const std::int64_t panel = 2 * pair;
        alignas(64) float tile[kTileOutputs];
        ProductTask task{};
        task.x = x_;
        task.x_stride = matrix.inputs;
        task.rows = 1;
        task.matrix = &matrix;
        task.panels = task.upcoming = {panel, std::min(panel + 1, matrix.num_panels() - 1)};
        task.tile = tile;
        kernels_.product(task);
        const std::int64_t first = panel * kPanelOutputs;
        const std::int64_t count = std::min(kTileOutputs, matrix.outputs - first);
        for (std::int64_t i = 0; i < count; ++i) {
            finite_ = finite_ && std::isfinite(tile[i]);
            if (best_ >= 0 && tile[i] <= greatest_) continue;
            greatest_ = tile[i];
            best_ = first + i;
        }
    }

    GreatestLogit result() const { return {finite_ ? best_ : 0, finite_}; }

  private:
    const PackedLinear& head_;
    const float* x_;
    const DenseKernels& kernels_;
    float greatest_ = 0.0f;
    std::int64_t best_ = -1;
    bool finite_ = true;
};

// How far the logits of a row may be from those in full. With w', x' for what int16 arithmetic
// makes of w and x: w'x' - wx = (w' - w)x' + w(x' - x), where a weight is off by half a quantum and
// a little for the roundings on the way there; the other term is bounded by the norms
// (Cauchy-Schwarz), as are the roundings of both sums (Higham, Accuracy and Stability of Numerical
// Algorithms, chapter 3).
double largest_error(const RowNorms& norms, double weight_norm, double weight_scale,
                     std::int64_t inputs) {
    const auto terms = static_cast<double>(inputs + inputs / kTileInputs + 16);
    return 1.001 * (0.51 * weight_scale * norms.quantised +
                    weight_norm * (norms.error + 1.02 * terms * kUnitRoundoff * norms.x));
}

}  // namespace

HeadScreen::HeadScreen(const PackedLinear& head, PackedLinear packed, double weight_norm,
                       double weight_scale)
    : head_(head),
      packed_(std::move(packed)),
      weight_norm_(weight_norm),
      weight_scale_(weight_scale) {}

std::unique_ptr<HeadScreen> HeadScreen::of(const PackedLinear& head, int num_threads) {
    const MatrixView& matrix = head.matrix();
    if (head.bias() != nullptr || matrix.scaled()) return nullptr;
    std::vector<float> weights(static_cast<std::size_t>(matrix.outputs * matrix.inputs));
    head.unpack(weights.data());
    double norm = 0.0;
    double largest = 0.0;
    for (auto row = weights.begin(); row != weights.end(); row += matrix.inputs) {
        double squares = 0.0;
        for (auto weight = row; weight != row + matrix.inputs; ++weight) {
            squares += double{*weight} * *weight;
            largest = std::max(largest, std::fabs(double{*weight}));
        }
        // One that is no number makes the sum none; `max` would pass over it.
        if (!std::isfinite(squares)) return nullptr;
        norm = std::max(norm, squares);
    }
    const MatrixSource source{weights.data(), ElementType::kFloat32, matrix.outputs, matrix.inputs,
                              nullptr};
    return std::unique_ptr<HeadScreen>(
        new HeadScreen(head, PackedLinear(source, MatrixFormat::kInt16, 0, num_threads),
                       1.001 * std::sqrt(norm), 1.001 * largest / kLargestQuantum + kLeastScaled));
}

GreatestLogit HeadScreen::greatest(const float* x, const QuantisedRows& quantised,
                                   const float* approximate, const DenseKernels& kernels) const {
    const MatrixView& matrix = head_.matrix();
    const std::int64_t lanes = kernels.greatest_lanes;
    const std::int64_t values = greatest_values(matrix, kernels);
    const std::int64_t block = round_up((values + kMostBlocks - 1) / kMostBlocks, lanes);
    std::array<float, kMostBlocks> greatest;
    std::size_t blocks = 0;
    bool finite = true;
    for (std::int64_t first = 0; first < values; first += block) {
        greatest[blocks] = approximate[first];
        finite &= kernels.greatest(approximate + first, std::min(block, values - first),
                                   &greatest[blocks]);
        ++blocks;
    }
    const RowNorms norms = norms_of(x, quantised, matrix.inputs);
    const auto end = greatest.begin() + static_cast<std::ptrdiff_t>(blocks);
    const double most = *std::max_element(greatest.begin(), end);
    const double error = largest_error(norms, weight_norm_, weight_scale_, matrix.inputs);
    // Else everything is computed in full: the row is not finite, or almost is not.
    const bool sure = finite && weight_norm_ * norms.x < kSurelyFinite;
    const double least = sure ? most - 2.0 * error : -kInfinity;
    Search search(head_, x, kernels);
    for (std::size_t b = 0; b < blocks; ++b) {
        if (greatest[b] < least) continue;
        const std::int64_t begin = static_cast<std::int64_t>(b) * block;
        for (std::int64_t at = begin; at < std::min(begin + block, values); at += lanes) {
            const float* const from = approximate + at;
            if (!(*std::max_element(from, from + lanes) < least)) search.look_at(at / lanes);
        }
    }
    return search.result();
}

}  // namespace dualpace
