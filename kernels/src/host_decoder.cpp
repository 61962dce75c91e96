#include "dualpace/host_decoder.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

#include "decode_step.h"

namespace dualpace {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

std::string text(std::int64_t n) { return std::to_string(n); }

void check_linear(const PackedLinear& linear, const std::string& name, std::int64_t inputs,
                  std::int64_t outputs) {
    if (linear.matrix().inputs != inputs || linear.matrix().outputs != outputs) {
        refuse(name + ": maps " + text(linear.matrix().inputs) + " to " +
               text(linear.matrix().outputs) + ", it must map " + text(inputs) + " to " +
               text(outputs));
    }
}

void check_layer(const DecoderLayer& layer, const DecoderShape& shape, const std::string& name) {
    check_linear(*layer.qkv, name + "qkv", shape.hidden, shape.qkv_size());
    check_linear(*layer.output, name + "output", shape.query_size(), shape.hidden);
    check_linear(*layer.gate_up, name + "gate_up", shape.hidden, 2 * shape.inner);
    check_linear(*layer.down, name + "down", shape.inner, shape.hidden);
    if (layer.rotary_dim % 2 != 0 || layer.rotary_dim > shape.head_dim) {
        refuse(name + "rope: rotary_dim is " + text(layer.rotary_dim) +
               ", it must be even and at most head_dim, " + text(shape.head_dim));
    }
}

// Adds what passes between two calls to a stage's seconds, on the thread that made it.
class Stopwatch {
  public:
    explicit Stopwatch(StageSeconds* seconds) : seconds_(seconds) { restart(); }
    void stage_ends(Stage stage) {
        if (seconds_ == nullptr) return;
        const Clock::time_point now = Clock::now();
        (*seconds_)[static_cast<std::size_t>(stage)] +=
            std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

  private:
    using Clock = std::chrono::steady_clock;
    void restart() { last_ = Clock::now(); }

    StageSeconds* seconds_;
    Clock::time_point last_;
};

}  // namespace

HostDecoder::HostDecoder(const DecoderShape& shape, const DecoderEnds& ends,
                         std::vector<DecoderLayer> layers)
    : shape_(shape), ends_(ends), layers_(std::move(layers)) {
    if (shape.inner % kPanelOutputs != 0) {
        refuse("inner: is " + text(shape.inner) + ", it must be a multiple of " +
               text(kPanelOutputs));
    }
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        const DecoderLayer& layer = layers_[i];
        check_layer(layer, shape, "layer " + std::to_string(i) + " ");
        if (std::find(windows_.begin(), windows_.end(), layer.window) == windows_.end())
            windows_.push_back(layer.window);
    }
    check_linear(*ends.head, "head", shape.hidden, shape.vocab);
}

void HostDecoder::check_step(const StepArgs& args) const {
    for (std::int64_t b = 0; b < args.batch; ++b) {
        if (args.token_ids[b] < 0 || args.token_ids[b] >= shape_.vocab) {
            refuse("token_ids[" + text(b) + "]: is " + text(args.token_ids[b]) +
                   ", the vocabulary has ids 0 to " + text(shape_.vocab - 1));
        }
        if (args.lengths[b] < 1 || args.lengths[b] > shape_.positions) {
            refuse("lengths[" + text(b) + "]: is " + text(args.lengths[b]) +
                   ", it must be from 1 to " + text(shape_.positions));
        }
    }
    PagedAttentionArgs attention{};
    attention.tables = args.tables;
    attention.rows = args.rows;
    attention.lengths = args.lengths;
    attention.batch = args.batch;
    attention.heads = shape_.heads;
    attention.kv_heads = shape_.kv_heads;
    attention.head_dim = shape_.head_dim;
    attention.num_blocks = args.num_blocks;
    attention.block_size = args.block_size;
    attention.num_tables = args.num_tables;
    attention.table_width = args.table_width;
    attention.scale = shape_.attention_scale;
    for (const std::int64_t window : windows_) {
        attention.window = window;
        check_paged_attention(attention);
    }
}

void HostDecoder::step(const StepArgs& args, bool rounding, int num_threads, Isa isa,
                       const Interruption& interruption) {
    check_step(args);
    if (args.batch == 0) return;
    const DecodeStep step(*this, windows_, args, memory_, rounding, num_threads, isa);
    run_team(num_threads, [&](const Team& team) {
        Stopwatch watch(team.index == 0 ? &seconds_ : nullptr);
        step.embed(team);
        watch.stage_ends(Stage::kEmbed);
        for (std::int64_t layer = 0; layer < num_layers(); ++layer) {
            if (team.index == 0) interruption.poll();
            step.pre_attention(layer, team);
            watch.stage_ends(Stage::kPreAttention);
            step.attention(layer, team);
            watch.stage_ends(Stage::kAttention);
            step.post_attention(layer, team);
            watch.stage_ends(Stage::kPostAttention);
        }
        if (team.index == 0) interruption.poll();
        step.head(team);
        watch.stage_ends(Stage::kHead);
    });
}

}  // namespace dualpace
