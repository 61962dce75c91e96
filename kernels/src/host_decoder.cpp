#include "dualpace/host_decoder.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>

#include "attention_beside.h"
#include "decode_head.h"
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

}  // namespace

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
    // So many seconds of one stage were another's.
    void move(double seconds, Stage from, Stage to) {
        if (seconds_ == nullptr) return;
        (*seconds_)[static_cast<std::size_t>(from)] -= seconds;
        (*seconds_)[static_cast<std::size_t>(to)] += seconds;
    }

  private:
    using Clock = std::chrono::steady_clock;
    void restart() { last_ = Clock::now(); }

    StageSeconds* seconds_;
    Clock::time_point last_;
};

namespace {

void run_layer(const DecodeStep& step, std::int64_t layer, const Team& team, Stopwatch& watch) {
    step.pre_attention(layer, team, nullptr);
    watch.stage_ends(Stage::kPreAttention);
    step.attention(layer, team);
    watch.stage_ends(Stage::kAttention);
    step.post_attention(layer, team, nullptr);
    watch.stage_ends(Stage::kPostAttention);
}

// Rows [begin, end) of a step's layers.
StepArgs part_of(const StepArgs& all, std::int64_t begin, std::int64_t end) {
    StepArgs part = all;
    part.token_ids += begin;
    part.rows += begin;
    part.lengths += begin;
    part.batch = part.capacity = end - begin;
    return part;
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
    for (const std::int64_t window : windows_)
        check_paged_attention(attention_args(shape_, args, window));
}

// Multiply-adds of one row in a layer's products, in front of attention and behind it.
double HostDecoder::pre_work() const {
    return static_cast<double>(shape_.hidden * shape_.qkv_size());
}

double HostDecoder::post_work() const {
    return static_cast<double>(shape_.hidden * (shape_.query_size() + 3 * shape_.inner));
}

// Goes through layers from `first` on, until somebody comes, or to the end of the step. Returns the
// layer at which those who came join, if they did. `asked`: whether that was asked before `first`.
std::int64_t HostDecoder::go_on(const StepArgs& all, float* hidden, std::int64_t first, bool asked,
                                const StepWay& way, const Interruption& interruption,
                                StepRows& newcomers) {
    const bool in_turns =
        way.rows_in_turns > 0 && all.batch >= std::max<std::int64_t>(2, way.rows_in_turns);
    const std::int64_t half = in_turns ? all.batch - all.batch / 2 : all.batch;
    std::deque<StepArgs> rows;
    std::deque<DecodeStep> groups;
    for (std::int64_t begin = 0; begin < all.batch; begin += half) {
        rows.push_back(part_of(all, begin, std::min(begin + half, all.batch)));
        groups.emplace_back(*this, windows_, rows.back(), hidden + begin * shape_.hidden,
                            memories_[groups.size()], way);
    }
    const DecodeHead head(*this, all, hidden, head_memory_, way);
    if (in_turns) ++passes_in_turns_;
    beside_.resize(static_cast<std::size_t>(way.num_threads));
    std::int64_t stop = num_layers();
    run_team(way.num_threads, [&](const Team& team) {
        Stopwatch watch(team.index == 0 ? &seconds_ : nullptr);
        if (first == 0) {
            for (const DecodeStep& group : groups) group.embed(team);
            watch.stage_ends(Stage::kEmbed);
        }
        for (std::int64_t layer = first;; ++layer) {
            // Those who join come in where all rows have as many layers behind them.
            if (team.index == 0 && !(asked && layer == first) && interruption.asked()) {
                newcomers = interruption.serve(layer);
                if (newcomers.count() != 0) stop = layer;
            }
            team.wait();
            const bool ends = layer == stop;
            if (in_turns) {
                const Turn behind{layer > first, !ends, layer};
                take_turn(groups[0], behind, layer > first ? &groups[1] : nullptr, layer - 1, way,
                          team, watch);
                take_turn(groups[1], behind, ends ? nullptr : &groups[0], layer, way, team, watch);
            } else if (!ends) {
                run_layer(groups[0], layer, team, watch);
            }
            if (ends) break;
        }
        if (newcomers.count() != 0) return;
        head.run(team);
        watch.stage_ends(Stage::kHead);
    });
    return stop;
}

// One group's products from its attention of the layer before to that of `turn.layer`, where those
// are to be done, and the other group's attention of a layer meanwhile. Null: of none.
void HostDecoder::take_turn(const DecodeStep& group, const Turn& turn, const DecodeStep* other,
                            std::int64_t attended, const StepWay& way, const Team& team,
                            Stopwatch& watch) {
    std::optional<LayerAttention> attention;
    std::optional<AttentionBeside> beside;
    if (other != nullptr) {
        const double work = (turn.post ? post_work() : 0.0) + (turn.pre ? pre_work() : 0.0);
        attention.emplace(*other, attended);
        beside.emplace(attention->run(), team.index, team.count, way.num_threads,
                       work * static_cast<double>(group.batch()) / team.count,
                       beside_[static_cast<std::size_t>(team.index)]);
    }
    Beside* const meanwhile = beside ? &*beside : nullptr;
    double seconds = 0.0;
    const auto ends = [&](Stage stage) {
        watch.stage_ends(stage);
        if (!beside) return;
        watch.move(beside->seconds() - seconds, stage, Stage::kAttention);
        seconds = beside->seconds();
    };
    if (turn.post) {
        group.post_attention(turn.layer - 1, team, meanwhile);
        ends(Stage::kPostAttention);
    }
    if (turn.pre) {
        group.pre_attention(turn.layer, team, meanwhile);
        ends(Stage::kPreAttention);
    }
    if (!beside) return;
    beside->finish();
    team.wait();
    other->close_attention(*attention, team);
    watch.stage_ends(Stage::kAttention);
}

// The first layers of those who join; leaves what comes out in `hidden`, [batch, hidden].
void HostDecoder::catch_up(const StepArgs& args, std::int64_t layers, const StepWay& way,
                           float* hidden) {
    const DecodeStep step(*this, windows_, args, hidden, newcomers_memory_, way);
    run_team(way.num_threads, [&](const Team& team) {
        Stopwatch watch(team.index == 0 ? &seconds_ : nullptr);
        step.embed(team);
        watch.stage_ends(Stage::kEmbed);
        for (std::int64_t layer = 0; layer < layers; ++layer) run_layer(step, layer, team, watch);
    });
}

std::int64_t HostDecoder::step(const StepArgs& args, const StepWay& way,
                               const Interruption& interruption) {
    check_step(args);
    if (args.batch == 0) return 0;
    float* const hidden = hidden_.reserve(args.capacity * shape_.hidden);
    StepArgs all = args;
    StepRows everybody;
    std::int64_t layer = 0;
    for (bool asked = false;; asked = true) {
        StepRows newcomers;
        layer = go_on(all, hidden, layer, asked, way, interruption, newcomers);
        if (newcomers.count() == 0) return all.batch;
        StepArgs joining = only(newcomers, args);
        joining.wanted = nullptr;
        check_step(joining);
        catch_up(joining, layer, way, hidden + all.batch * shape_.hidden);
        if (everybody.count() == 0) everybody = copied(args);
        append(newcomers, everybody);
        all = only(everybody, args);
    }
}

}  // namespace dualpace
