#include "dualpace/host_decoder.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <stdexcept>
#include <string>

#include "course.h"
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

// Calls attended() between attention and what follows.
template <class Attended>
void run_layer(const DecodeStep& step, std::int64_t layer, const Team& team, Stopwatch& watch,
               const Attended& attended) {
    step.pre_attention(layer, team);
    watch.stage_ends(Stage::kPreAttention);
    step.attention(layer, team);
    watch.stage_ends(Stage::kAttention);
    attended();
    step.post_attention(layer, team);
    watch.stage_ends(Stage::kPostAttention);
}

// Of two groups' threads, those of the first.
int leading_threads(int num_threads) { return (num_threads + 1) / 2; }

// Rows [begin, end) of a step.
StepArgs part_of(const StepArgs& all, std::int64_t begin, std::int64_t end, std::int64_t vocab) {
    StepArgs part = all;
    part.token_ids += begin;
    part.rows += begin;
    part.lengths += begin;
    part.batch = part.capacity = end - begin;
    part.wanted_rows = std::clamp<std::int64_t>(all.wanted_rows - begin, 0, part.batch);
    if (part.wanted != nullptr) part.wanted = part.wanted_rows > 0 ? all.wanted + begin : nullptr;
    part.logits += begin * vocab;
    part.best += begin;
    part.finite += begin;
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

// What the layers take for one row, in multiply-adds of the narrowest kind. For each byte of keys
// and values that is about three of fp32, six of narrower ones.
double HostDecoder::row_cost(const StepArgs& args, std::int64_t row, bool rounding) const {
    const std::int64_t weights =
        shape_.hidden * (shape_.qkv_size() + shape_.query_size() + 3 * shape_.inner);
    const std::int64_t key_bytes =
        2 * shape_.kv_heads * shape_.head_dim * (args.kv_type == ElementType::kFloat32 ? 4 : 2);
    const std::int64_t length = args.lengths[row];
    std::int64_t keys = 0;
    for (const DecoderLayer& layer : layers_)
        keys += layer.window > 0 ? std::min(layer.window, length) : length;
    return static_cast<double>(num_layers() * weights + (rounding ? 6 : 3) * key_bytes * keys);
}

// One or two groups of a step's rows, that take about as long for their threads; one where rows
// differ so much that two would not.
std::vector<StepArgs> HostDecoder::groups_of(const StepArgs& all, const StepWay& way) const {
    constexpr double kMostUneven = 1.03;
    const bool apart = way.rows_apart > 0 && all.batch >= way.rows_apart && way.num_threads > 1;
    if (!apart || all.batch < 2) return {all};
    std::vector<double> before{0.0};
    for (std::int64_t row = 0; row < all.batch; ++row)
        before.push_back(before.back() + row_cost(all, row, way.rounding));
    const double share = static_cast<double>(leading_threads(way.num_threads)) / way.num_threads;
    const double fair = before.back() * share;
    const auto above = std::lower_bound(before.begin() + 1, before.end() - 2, fair);
    const auto cut =
        fair - *(above - 1) < *above - fair && above - 1 != before.begin() ? above - 1 : above;
    const double slower = std::max(*cut / share, (before.back() - *cut) / (1.0 - share));
    if (slower > kMostUneven * before.back()) return {all};
    const std::int64_t rows = cut - before.begin();
    return {part_of(all, 0, rows, shape_.vocab), part_of(all, rows, all.batch, shape_.vocab)};
}

// Goes through layers from `first` on, until somebody comes, or to the end of the step. Returns the
// layer at which those who came join, if they did.
std::int64_t HostDecoder::go_on(const StepArgs& all, float* hidden, std::int64_t first,
                                const StepWay& way, const Interruption& interruption,
                                StepRows& newcomers) {
    const std::vector<StepArgs> groups = groups_of(all, way);
    std::deque<DecodeStep> steps;
    for (std::size_t g = 0; g < groups.size(); ++g) {
        StepWay own = way;
        const int leading = leading_threads(way.num_threads);
        if (groups.size() > 1) own.num_threads = g == 0 ? leading : way.num_threads - leading;
        steps.emplace_back(*this, windows_, groups[g], hidden, memories_[g], own);
        hidden += groups[g].batch * shape_.hidden;
    }
    if (groups.size() > 1) ++passes_apart_;
    Course course(first, num_layers());
    std::array<bool, kMostGroups> goes_on{};
    const auto run_group = [&](std::size_t group, const Team& team, Stopwatch& watch) {
        const DecodeStep& step = steps[group];
        const bool leads = team.index == 0;
        if (leads && group != 0) course.give_lead();
        if (first == 0) {
            step.embed(team);
            watch.stage_ends(Stage::kEmbed);
        }
        for (std::int64_t layer = first;; ++layer) {
            if (leads) goes_on[group] = course.begin(group, layer);
            team.wait();
            if (!goes_on[group]) break;
            if (leads && group == 0) append(course.poll(interruption), newcomers);
            if (layer == num_layers()) {
                step.head(team);
                watch.stage_ends(Stage::kHead);
                break;
            }
            run_layer(step, layer, team, watch, [&] {
                if (leads && group == 0 && layer == first) course.take_lead();
            });
        }
        if (leads) course.end(group);
    };
    std::array<MeetingPoint, kMostGroups> meetings;
    run_team(way.num_threads, [&](const Team& team) {
        Stopwatch watch(team.index == 0 ? &seconds_ : nullptr);
        if (groups.size() == 1) {
            run_group(0, team, watch);
            return;
        }
        const int leading = leading_threads(team.count);
        const bool alone = team.count == 1;
        if (team.index < leading) run_group(0, {team.index, leading, &meetings[0]}, watch);
        if (alone) {
            run_group(1, {0, 1, &meetings[1]}, watch);
        } else if (team.index >= leading) {
            run_group(1, {team.index - leading, team.count - leading, &meetings[1]}, watch);
        }
        if (team.index == 0) {
            while (!course.has_ended(1)) append(course.poll(interruption), newcomers);
            watch.stage_ends(course.stop() == Course::kNowhere ? Stage::kHead
                                                               : Stage::kPostAttention);
        }
        team.wait();
    });
    return course.stop();
}

// The first layers of those who join; leaves what comes out in `hidden`, [batch, hidden].
void HostDecoder::catch_up(const StepArgs& args, std::int64_t layers, const StepWay& way,
                           float* hidden) {
    const DecodeStep step(*this, windows_, args, hidden, newcomers_memory_, way);
    run_team(way.num_threads, [&](const Team& team) {
        Stopwatch watch(team.index == 0 ? &seconds_ : nullptr);
        step.embed(team);
        watch.stage_ends(Stage::kEmbed);
        for (std::int64_t layer = 0; layer < layers; ++layer)
            run_layer(step, layer, team, watch, [] {});
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
    for (;;) {
        StepRows newcomers;
        layer = go_on(all, hidden, layer, way, interruption, newcomers);
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
