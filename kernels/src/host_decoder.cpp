#include "dualpace/host_decoder.h"

#include <algorithm>
#include <atomic>
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

StepRows copied(const StepArgs& args) {
    return {{args.token_ids, args.token_ids + args.batch},
            {args.rows, args.rows + args.batch},
            {args.lengths, args.lengths + args.batch}};
}

void append(const StepRows& from, StepRows& to) {
    to.token_ids.insert(to.token_ids.end(), from.token_ids.begin(), from.token_ids.end());
    to.rows.insert(to.rows.end(), from.rows.begin(), from.rows.end());
    to.lengths.insert(to.lengths.end(), from.lengths.begin(), from.lengths.end());
}

// The same step, of these rows.
StepArgs only(const StepRows& rows, const StepArgs& args) {
    StepArgs result = args;
    result.token_ids = rows.token_ids.data();
    result.rows = rows.rows.data();
    result.lengths = rows.lengths.data();
    result.batch = rows.count();
    return result;
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

void run_layer(const DecodeStep& step, std::int64_t layer, const Team& team, Stopwatch& watch) {
    step.pre_attention(layer, team);
    watch.stage_ends(Stage::kPreAttention);
    step.attention(layer, team);
    watch.stage_ends(Stage::kAttention);
    step.post_attention(layer, team);
    watch.stage_ends(Stage::kPostAttention);
}

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

// Goes through layers from `first` on, until somebody comes, or to the end of the step. Returns the
// first layer that is still to come.
std::int64_t HostDecoder::go_on(const DecodeStep& step, std::int64_t first, const Way& way,
                                const Interruption& interruption, StepRows& newcomers) {
    std::atomic<std::int64_t> last{num_layers()};
    run_team(way.num_threads, [&](const Team& team) {
        Stopwatch watch(team.index == 0 ? &seconds_ : nullptr);
        if (first == 0) {
            step.embed(team);
            watch.stage_ends(Stage::kEmbed);
        }
        for (std::int64_t layer = first; layer < num_layers(); ++layer) {
            if (team.index == 0) {
                newcomers = interruption.poll(layer + 1);
                // Others read this behind the end of a stage of this layer.
                if (newcomers.count() != 0) last.store(layer, std::memory_order_relaxed);
            }
            run_layer(step, layer, team, watch);
            if (last.load(std::memory_order_relaxed) == layer) return;
        }
        if (team.index == 0) interruption.poll(kTooLate);
        step.head(team);
        watch.stage_ends(Stage::kHead);
    });
    return std::min(last.load(std::memory_order_relaxed) + 1, num_layers());
}

// The first layers of those who join; leaves what comes out in `hidden`, [batch, hidden].
void HostDecoder::catch_up(const StepArgs& args, std::int64_t layers, const Way& way,
                           float* hidden) {
    const DecodeStep step(*this, windows_, args, newcomers_memory_, way.rounding, way.num_threads,
                          way.isa);
    run_team(way.num_threads, [&](const Team& team) {
        Stopwatch watch(team.index == 0 ? &seconds_ : nullptr);
        step.embed(team);
        watch.stage_ends(Stage::kEmbed);
        for (std::int64_t layer = 0; layer < layers; ++layer) run_layer(step, layer, team, watch);
    });
    std::copy_n(step.hidden(), args.batch * shape_.hidden, hidden);
}

std::int64_t HostDecoder::step(const StepArgs& args, bool rounding, int num_threads, Isa isa,
                               const Interruption& interruption) {
    check_step(args);
    if (args.batch == 0) return 0;
    const Way way{rounding, num_threads, isa};
    StepArgs all = args;
    StepRows everybody;
    std::int64_t layer = 0;
    for (;;) {
        const DecodeStep step(*this, windows_, all, memory_, rounding, num_threads, isa);
        StepRows newcomers;
        layer = go_on(step, layer, way, interruption, newcomers);
        if (newcomers.count() == 0) return all.batch;
        const StepArgs joining = only(newcomers, args);
        check_step(joining);
        catch_up(joining, layer, way, step.hidden() + all.batch * shape_.hidden);
        if (everybody.count() == 0) everybody = copied(args);
        append(newcomers, everybody);
        all = only(everybody, args);
    }
}

}  // namespace dualpace
