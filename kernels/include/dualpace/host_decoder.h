// A decoder's layers on the host: one token of each of many sequences at a time, over paged KV, in
// the stages of which the engines speak (embed, pre-attention, attention, post-attention, head).
//
// Activations are fp32 throughout. Knows nothing of requests, checkpoints or Python. One team of
// threads goes through a whole step; the stages are where its threads wait for each other. A large
// batch goes in two groups of rows that take turns: while one group's products are computed, which
// leave memory idle, the other's keys and values are fetched into the cores' own caches, and its
// attention is computed between two tasks of the products.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "dualpace/attention_plan.h"
#include "dualpace/beside.h"
#include "dualpace/dense_kernels.h"
#include "dualpace/element.h"
#include "dualpace/head_screen.h"
#include "dualpace/isa.h"
#include "dualpace/linear.h"
#include "dualpace/matrix.h"
#include "dualpace/scratch.h"

namespace dualpace {

struct DecoderShape {
    std::int64_t hidden;
    std::int64_t heads;
    std::int64_t kv_heads;
    std::int64_t head_dim;
    std::int64_t inner;  // of the feed-forward stages, a multiple of kPanelOutputs
    std::int64_t vocab;
    std::int64_t positions;  // that the rope tables know
    float norm_eps;
    float attention_scale;
    float embedding_scale;

    std::int64_t query_size() const { return heads * head_dim; }
    std::int64_t qkv_size() const { return (heads + 2 * kv_heads) * head_dim; }
};

// One layer. Nothing is owned. Null: the model has no such part.
struct DecoderLayer {
    const float* input_norm;                // [hidden]
    const PackedLinear* qkv;                // hidden to qkv_size
    const float* q_norm;                    // [head_dim]
    const float* k_norm;                    // [head_dim]
    const PackedLinear* output;             // query_size to hidden
    const float* output_norm;               // [hidden]
    const float* feed_forward_norm;         // [hidden]
    const PackedLinear* gate_up;            // hidden to 2 * inner: gates, then what is gated
    const PackedLinear* down;               // inner to hidden
    const float* feed_forward_output_norm;  // [hidden]
    Activation activation;
    const float* rope;        // [positions, rotary_dim]: rotary_dim / 2 cosines, then as many sines
    std::int64_t rotary_dim;  // even, at most head_dim
    std::int64_t window;      // 0: none
};

struct DecoderEnds {
    const void* embedding;  // [vocab, hidden]
    ElementType embedding_type;
    const float* final_norm;   // [hidden]
    const PackedLinear* head;  // hidden to vocab
    const HeadScreen* screen;  // of `head`; null: none
};

// Row b advances the sequence whose blocks are tables[rows[b]] by the token token_ids[b], at
// position lengths[b] - 1. No two rows may be of one sequence.
struct StepArgs {
    const std::int64_t* token_ids;  // [batch]
    const std::int32_t* rows;       // [batch]
    const std::int32_t* lengths;    // [batch], the current token included
    const std::int32_t* tables;     // [num_tables, table_width], block ids
    std::int64_t batch;
    std::int64_t num_tables;
    std::int64_t table_width;
    void* kv;  // [layers, num_blocks, 2, kv_heads, block_size, head_dim]
    ElementType kv_type;
    std::int64_t num_blocks;
    std::int64_t block_size;
    std::int64_t capacity;     // at least batch: rows that what follows has, for those that join
    const bool* wanted;        // [wanted_rows]: whose logits are wanted; null: everybody's
    std::int64_t wanted_rows;  // those behind them are wanted
    float* logits;             // [capacity, vocab], out; of rows that are not wanted, anything
    std::int64_t* best;        // [capacity], out: the greatest logit, the first of equals
    bool* finite;              // [capacity], out: whether all of a row's logits are; else best is 0
};

// Rows of StepArgs by themselves, for those that come in the middle of a step.
struct StepRows {
    std::vector<std::int64_t> token_ids;
    std::vector<std::int32_t> rows;
    std::vector<std::int32_t> lengths;

    std::int64_t count() const { return static_cast<std::int64_t>(token_ids.size()); }
};

// Where the time of steps went, on the calling thread.
enum class Stage { kEmbed, kPreAttention, kAttention, kPostAttention, kHead };
inline constexpr std::size_t kNumStages = 5;
using StageSeconds = std::array<double, kNumStages>;

// What a caller wants to do in the middle of a step. Looked at before each layer and before the
// head, by the thread that called; `serve` runs in it. It must not throw, nor touch what the step
// reads. It is told how many layers those who join now have to catch up with, and returns those who
// do; no more than there is capacity for.
struct Interruption {
    const std::int32_t* flag = nullptr;  // not zero: call `serve`. Null: never
    std::function<StepRows(std::int64_t behind)> serve;

    bool asked() const { return flag != nullptr && __atomic_load_n(flag, __ATOMIC_ACQUIRE) != 0; }
};

// Rows of fp32 that are kept between steps.
struct StepMemory {
    Scratch normed, qkv, query, attended, inner, projected, prepared, attention;
    std::vector<AttentionPlan> plans;  // one for each distinct window
    std::deque<Ticket> tickets;        // one for each product of the layers
};

// The same, of the head.
struct HeadMemory {
    Scratch normed, prepared;
    Scratch scores;                   // [rows, vocab], where some rows are wanted and some not
    Scratch screened;                 // [rows, greatest_values()]
    std::vector<std::int64_t> order;  // of the rows: those that are wanted, then the others
    std::array<Ticket, 2> tickets;    // of the head, and of its screen
};

// Groups of a step's rows that take turns.
inline constexpr std::size_t kMostGroups = 2;

// How a step is computed. What comes out does not depend on the threads and groups.
struct StepWay {
    bool rounding;  // see linear()
    int num_threads;
    Isa isa;
    // From so many rows on, two groups of them take turns: while one is multiplied, the other's
    // keys and values are read. Each reads all weights. 0: never.
    std::int64_t rows_in_turns;
};

class DecodeStep;
class Stopwatch;
struct Team;

class HostDecoder {
  public:
    // Throws std::invalid_argument naming the part, its size and what it must be.
    HostDecoder(const DecoderShape& shape, const DecoderEnds& ends,
                std::vector<DecoderLayer> layers);

    // Returns the rows of the step: the batch, then those who joined, in their order. They compute
    // alone the layers that the others have behind them, and go on with them. Throws
    // std::invalid_argument naming the argument, its value and what is allowed, before anything is
    // written, but for those who join, with whom the step ends there. Not for two threads at once.
    std::int64_t step(const StepArgs& args, const StepWay& way,
                      const Interruption& interruption = {});

    const DecoderShape& shape() const { return shape_; }
    std::int64_t num_layers() const { return static_cast<std::int64_t>(layers_.size()); }
    const DecoderLayer& layer(std::int64_t i) const { return layers_[static_cast<std::size_t>(i)]; }
    const DecoderEnds& ends() const { return ends_; }
    // Of all steps so far.
    const StageSeconds& stage_seconds() const { return seconds_; }
    // How often rows went in two groups so far.
    std::int64_t passes_in_turns() const { return passes_in_turns_; }

  private:
    void check_step(const StepArgs& args) const;
    // Products of a group: what follows the attention of the layer before, and what precedes that
    // of `layer`.
    struct Turn {
        bool post;
        bool pre;
        std::int64_t layer;
    };

    double pre_work() const;
    double post_work() const;
    void take_turn(const DecodeStep& group, const Turn& turn, const DecodeStep* other,
                   std::int64_t attended, const StepWay& way, const Team& team, Stopwatch& watch);
    std::int64_t go_on(const StepArgs& all, float* hidden, std::int64_t first, bool asked,
                       const StepWay& way, const Interruption& interruption, StepRows& newcomers);
    void catch_up(const StepArgs& args, std::int64_t layers, const StepWay& way, float* hidden);

    DecoderShape shape_;
    DecoderEnds ends_;
    std::vector<DecoderLayer> layers_;
    std::vector<std::int64_t> windows_;  // distinct
    Scratch hidden_;  // [capacity, hidden]: all that one layer leaves for the next
    std::array<StepMemory, kMostGroups> memories_;
    HeadMemory head_memory_;
    std::vector<std::vector<MemoryPiece>> beside_;  // of each thread
    StepMemory newcomers_memory_;
    StageSeconds seconds_{};
    std::int64_t passes_in_turns_ = 0;
};

}  // namespace dualpace
