// Packing: from a row-major weight to panels.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <string>

#include "dualpace/huge_memory.h"
#include "dualpace/matrix.h"
#include "dualpace/scratch.h"
#include "dualpace/vec/scalar.h"

namespace dualpace {
namespace {

struct Format {
    MatrixFormat format;
    std::string_view name;
    std::int64_t element_bytes;
};

constexpr Format kFormats[] = {{MatrixFormat::kFloat32, "float32", 4},
                               {MatrixFormat::kBFloat16, "bfloat16", 2},
                               {MatrixFormat::kFloat16, "float16", 2},
                               {MatrixFormat::kInt8, "int8", 1},
                               {MatrixFormat::kInt16, "int16", 2}};

constexpr std::int32_t kLargestByte = 127;

bool in_pairs(MatrixFormat format) {
    return format == MatrixFormat::kBFloat16 || format == MatrixFormat::kInt16;
}

const Format& entry(MatrixFormat format) {
    return *std::find_if(std::begin(kFormats), std::end(kFormats),
                         [format](const Format& f) { return f.format == format; });
}

template <class T>
void widen_all(const void* from, std::int64_t first, std::int64_t count, float* to) {
    const T* elements = static_cast<const T*>(from) + first;
    for (std::int64_t i = 0; i < count; ++i) to[i] = widen(elements[i]);
}

// One output's weights as fp32; zeros where the source has no such output.
void read_row(const MatrixSource& source, std::int64_t output, float* to) {
    if (output >= source.outputs) {
        std::fill_n(to, source.inputs, 0.0f);
        return;
    }
    const std::int64_t first = output * source.inputs;
    switch (source.type) {
        case ElementType::kFloat32:
            widen_all<float>(source.weight, first, source.inputs, to);
            break;
        case ElementType::kFloat16: widen_all<Half>(source.weight, first, source.inputs, to); break;
        case ElementType::kBFloat16:
            widen_all<BFloat16>(source.weight, first, source.inputs, to);
            break;
    }
}

// Where the weight of (input, output within the panel) is kept.
std::int64_t place(MatrixFormat format, std::int64_t input, std::int64_t column) {
    if (in_pairs(format)) return (input / 2 * kPanelOutputs + column) * 2 + input % 2;
    return input * kPanelOutputs + column;
}

// Symmetric: the largest weight of a group becomes `most` or -`most`. Returns the scale.
template <class T>
float quantise_group(const float* row, std::int64_t first, std::int64_t last, MatrixFormat format,
                     std::int64_t column, std::int32_t most, T* quanta) {
    const auto bound = static_cast<float>(most);
    float largest = 0.0f;
    for (std::int64_t i = first; i < last; ++i) largest = std::max(largest, std::fabs(row[i]));
    const bool scaled = largest >= kLeastScaled;
    const float inverse = scaled ? bound / largest : 0.0f;
    for (std::int64_t i = first; i < last; ++i) {
        const float quantum = std::nearbyint(row[i] * inverse);
        quanta[place(format, i, column)] = static_cast<T>(std::clamp(quantum, -bound, bound));
    }
    return scaled ? largest / bound : 0.0f;
}

// One output's weights into its column of a panel.
void pack_row(const float* row, const MatrixView& view, std::int64_t column, std::byte* panel,
              float* scales) {
    for (std::int64_t i = 0; i < view.inputs; ++i) {
        const std::int64_t at = place(view.format, i, column);
        switch (view.format) {
            case MatrixFormat::kFloat32: reinterpret_cast<float*>(panel)[at] = row[i]; break;
            case MatrixFormat::kBFloat16:
                reinterpret_cast<BFloat16*>(panel)[at] = to_bfloat16(row[i]);
                break;
            case MatrixFormat::kFloat16:
                reinterpret_cast<Half*>(panel)[at] = to_half(row[i]);
                break;
            case MatrixFormat::kInt8:
                if (i % view.group != 0) break;
                scales[i / view.group * kPanelOutputs + column] =
                    quantise_group(row, i, std::min(i + view.group, view.inputs), view.format,
                                   column, kLargestByte, reinterpret_cast<std::int8_t*>(panel));
                break;
            case MatrixFormat::kInt16:
                if (i != 0) break;
                scales[column] =
                    quantise_group(row, 0, view.inputs, view.format, column, kLargestQuantum,
                                   reinterpret_cast<std::int16_t*>(panel));
                break;
        }
    }
}

float unpacked(const MatrixView& view, std::int64_t output, std::int64_t input) {
    const std::byte* const panel = view.panel(output / kPanelOutputs);
    const std::int64_t column = output % kPanelOutputs;
    const std::int64_t at = place(view.format, input, column);
    switch (view.format) {
        case MatrixFormat::kFloat32: return reinterpret_cast<const float*>(panel)[at];
        case MatrixFormat::kBFloat16: return widen(reinterpret_cast<const BFloat16*>(panel)[at]);
        case MatrixFormat::kFloat16: return widen(reinterpret_cast<const Half*>(panel)[at]);
        default: break;
    }
    const float scale =
        view.panel_scales(output / kPanelOutputs)[input / view.group * kPanelOutputs + column];
    const int quantum = view.format == MatrixFormat::kInt8
                            ? int{reinterpret_cast<const std::int8_t*>(panel)[at]}
                            : int{reinterpret_cast<const std::int16_t*>(panel)[at]};
    return static_cast<float>(quantum) * scale;
}

bool holds(MatrixFormat format, float value) {
    switch (format) {
        case MatrixFormat::kFloat32: return true;
        case MatrixFormat::kBFloat16: return widen(to_bfloat16(value)) == value;
        case MatrixFormat::kFloat16: return widen(to_half(value)) == value;
        default: return false;
    }
}

void check(const MatrixSource& source, MatrixFormat format, std::int64_t group) {
    if (source.outputs < 1 || source.inputs < 1) {
        throw std::invalid_argument("weight: has shape [" + std::to_string(source.outputs) + ", " +
                                    std::to_string(source.inputs) + "], both must be positive");
    }
    if (group < 0 || group % kPanelOutputs != 0) {
        throw std::invalid_argument("group: is " + std::to_string(group) +
                                    ", it must be 0 (one scale an output) or a multiple of 16");
    }
    if (group != 0 && format != MatrixFormat::kInt8)
        throw std::invalid_argument("group: only int8 has groups");
    if (format == MatrixFormat::kBFloat16 && source.inputs % 2 != 0) {
        throw std::invalid_argument("weight: bfloat16 needs an even number of inputs, not " +
                                    std::to_string(source.inputs));
    }
}

}  // namespace

std::string_view format_name(MatrixFormat format) { return entry(format).name; }

MatrixFormat parse_format(std::string_view name) {
    std::string known;
    for (const Format& format : kFormats) {
        if (format.name == name) return format.format;
        known += (known.empty() ? "" : ", ") + std::string(format.name);
    }
    throw std::invalid_argument("format: '" + std::string(name) + "' is not one of " + known);
}

PackedLinear::PackedLinear(const MatrixSource& source, MatrixFormat format, std::int64_t group,
                           int num_threads) {
    check(source, format, group);
    const std::int64_t stored_inputs =
        in_pairs(format) ? round_up(source.inputs, kTileInputs) : source.inputs;
    view_.format = format;
    view_.outputs = source.outputs;
    view_.inputs = source.inputs;
    view_.panel_bytes = stored_inputs * kPanelOutputs * entry(format).element_bytes;
    view_.group = group == 0 ? source.inputs : std::min(group, source.inputs);
    const std::int64_t panels = view_.num_panels();
    const std::int64_t weight_bytes = round_up(panels * view_.panel_bytes, 64);
    const std::int64_t num_scales =
        view_.scaled() ? panels * view_.num_groups() * kPanelOutputs : 0;
    num_bytes_ = weight_bytes + num_scales * std::int64_t{sizeof(float)};
    memory_ = allocate_huge(num_bytes_);
    std::byte* const data = memory_.get();
    auto* const scales = reinterpret_cast<float*>(data + weight_bytes);
    view_.panels = data;
    view_.scales = scales;
#pragma omp parallel num_threads(num_threads)
    {
        std::vector<float> row(static_cast<std::size_t>(source.inputs));
#pragma omp for schedule(dynamic)
        for (std::int64_t panel = 0; panel < panels; ++panel) {
            for (std::int64_t column = 0; column < kPanelOutputs; ++column) {
                read_row(source, panel * kPanelOutputs + column, row.data());
                pack_row(row.data(), view_, column, data + panel * view_.panel_bytes,
                         scales + panel * view_.num_groups() * kPanelOutputs);
            }
        }
    }
    if (source.bias != nullptr) {
        bias_.assign(static_cast<std::size_t>(panels * kPanelOutputs), 0.0f);
        std::copy_n(source.bias, source.outputs, bias_.begin());
    }
}

void PackedLinear::unpack(float* weight) const {
    for (std::int64_t output = 0; output < view_.outputs; ++output) {
        for (std::int64_t input = 0; input < view_.inputs; ++input)
            *weight++ = unpacked(view_, output, input);
    }
}

bool holds_exactly(const MatrixSource& source, MatrixFormat format, int num_threads) {
    std::atomic<bool> exact{true};
#pragma omp parallel num_threads(num_threads)
    {
        std::vector<float> row(static_cast<std::size_t>(source.inputs));
#pragma omp for schedule(dynamic)
        for (std::int64_t output = 0; output < source.outputs; ++output) {
            if (!exact.load(std::memory_order_relaxed)) continue;
            read_row(source, output, row.data());
            if (!std::all_of(row.begin(), row.end(),
                             [format](float x) { return holds(format, x); }))
                exact.store(false, std::memory_order_relaxed);
        }
    }
    return exact.load();
}

}  // namespace dualpace
