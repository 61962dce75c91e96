// Weights of a linear map, packed for the product kernels. Knows nothing of models.
//
// Outputs are grouped into panels of 16, and within a panel the weights of one input lie side by
// side, so that a product reads each panel front to back. bfloat16 keeps two inputs together, as
// processors with bfloat16 arithmetic and with tiles want them: one layout serves every level.
// int16 lies in the same way.
//
//   float32, float16, int8:  [panel][input][16]
//   bfloat16, int16:         [panel][input / 2][16][2], inputs filled up with zeros to kTileInputs
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "dualpace/element.h"

namespace dualpace {

inline constexpr std::int64_t kPanelOutputs = 16;
// Inputs of one AMX tile of bfloat16.
inline constexpr std::int64_t kTileInputs = 32;
// Of int16 weights and activations: kTileInputs products of two such numbers add up in 32 bits.
inline constexpr std::int32_t kLargestQuantum = 8191;
static_assert(std::int64_t{kLargestQuantum} * kLargestQuantum * kTileInputs < std::int64_t{1}
                                                                                  << 31);
// What is smaller than this counts as zero where it is the largest of those that share a scale.
inline constexpr float kLeastScaled = 1e-30f;

enum class MatrixFormat { kFloat32, kBFloat16, kFloat16, kInt8, kInt16 };

std::string_view format_name(MatrixFormat format);
// Throws std::invalid_argument that lists the known names.
MatrixFormat parse_format(std::string_view name);

// A packed matrix as the kernels see it. Nothing is owned.
struct MatrixView {
    MatrixFormat format;
    std::int64_t outputs;
    std::int64_t inputs;
    std::int64_t panel_bytes;
    const std::byte* panels;
    // int8 and int16: weight = quantum * scale, one scale for each output and `group` inputs; of
    // int16 that is all.
    std::int64_t group;
    const float* scales;  // [panel][group of inputs][16]

    bool scaled() const { return format == MatrixFormat::kInt8 || format == MatrixFormat::kInt16; }
    std::int64_t num_panels() const { return (outputs + kPanelOutputs - 1) / kPanelOutputs; }
    std::int64_t num_groups() const { return (inputs + group - 1) / group; }
    const std::byte* panel(std::int64_t index) const { return panels + index * panel_bytes; }
    const float* panel_scales(std::int64_t index) const {
        return scales + index * num_groups() * kPanelOutputs;
    }
};

// A dense, row-major weight to pack. Nothing is owned.
struct MatrixSource {
    const void* weight;  // [outputs, inputs]
    ElementType type;
    std::int64_t outputs;
    std::int64_t inputs;
    const float* bias;  // [outputs]; null: none
};

// A linear map: packed weights and a bias. The weights lie on huge pages where the kernel gives
// them.
class PackedLinear {
  public:
    // `group`: inputs that share a scale in int8, a positive multiple of 16; 0: all of them.
    // Throws std::invalid_argument if a size is not positive or `group` is not allowed.
    PackedLinear(const MatrixSource& source, MatrixFormat format, std::int64_t group,
                 int num_threads);

    const MatrixView& matrix() const { return view_; }
    // [num_panels * 16], zeros behind the last output; null: none.
    const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }
    std::int64_t num_bytes() const { return num_bytes_; }

    // Writes the weights as they are used, [outputs, inputs].
    void unpack(float* weight) const;

  private:
    MatrixView view_{};
    std::shared_ptr<std::byte> memory_;
    std::int64_t num_bytes_ = 0;
    std::vector<float> bias_;
};

// Whether every weight is one of `format`'s values, so that packing loses nothing. False for int8
// and int16.
bool holds_exactly(const MatrixSource& source, MatrixFormat format, int num_threads);

}  // namespace dualpace
