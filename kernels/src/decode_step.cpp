#include "decode_step.h"

#include <algorithm>
#include <numeric>

#include "dualpace/vec/scalar.h"

namespace dualpace {
namespace {

// Products of a layer, in order; they number its tickets.
enum Product : std::int64_t { kQkv, kOutput, kGateUp, kDown, kProducts };
// Behind those of all layers.
enum HeadProduct : std::int64_t { kHead, kScreen, kHeadProducts };

std::int64_t element_bytes(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

template <class T>
void widen_row(const void* from, std::int64_t row, std::int64_t n, float scale, float* to) {
    const T* elements = static_cast<const T*>(from) + row * n;
    for (std::int64_t i = 0; i < n; ++i) to[i] = widen(elements[i]) * scale;
}

}  // namespace

DecodeStep::DecodeStep(const HostDecoder& decoder, const std::vector<std::int64_t>& windows,
                       const StepArgs& args, float* hidden, StepMemory& memory, const StepWay& way)
    : decoder_(decoder),
      shape_(decoder.shape()),
      args_(args),
      dense_(dense_kernels(way.isa)),
      span_(span_kernels(way.isa)),
      num_threads_(way.num_threads),
      rounding_(way.rounding),
      windows_(windows),
      hidden_(hidden),
      memory_(memory) {
    const std::int64_t batch = args.batch;
    normed_ = memory.normed.reserve(batch * shape_.hidden);
    projected_ = memory.projected.reserve(batch * shape_.hidden);
    qkv_ = memory.qkv.reserve(batch * shape_.qkv_size());
    query_ = memory.query.reserve(batch * shape_.query_size());
    attended_ = memory.attended.reserve(batch * shape_.query_size());
    inner_ = memory.inner.reserve(batch * shape_.inner);
    const std::int64_t widest = std::max({shape_.hidden, shape_.query_size(), shape_.inner});
    prepared_ = memory.prepared.reserve(prepared_words(batch, widest));
    memory.tickets.resize(
        static_cast<std::size_t>(decoder.num_layers() * kProducts + kHeadProducts));
    for (Ticket& ticket : memory.tickets) ticket.reset();
    prepare_attention(windows, memory);
    order_rows();
}

bool DecodeStep::wanted(std::int64_t row) const {
    return args_.wanted == nullptr || row >= args_.wanted_rows || args_.wanted[row];
}

// Only the greatest logit of a row that is not wanted has to be right. Where activations are
// rounded the head is as fast as a screen of it.
void DecodeStep::order_rows() {
    const bool screens = decoder_.ends().screen != nullptr && !rounding_ && dense_.fast_quanta;
    memory_.order.resize(static_cast<std::size_t>(args_.batch));
    std::iota(memory_.order.begin(), memory_.order.end(), 0);
    const auto screened =
        std::stable_partition(memory_.order.begin(), memory_.order.end(),
                              [&](std::int64_t row) { return !screens || wanted(row); });
    exact_rows_ = screened - memory_.order.begin();
    const bool mixed = exact_rows_ != 0 && exact_rows_ != args_.batch;
    scores_ = mixed ? memory_.scores.reserve(exact_rows_ * shape_.vocab) : args_.logits;
    screened_ = nullptr;
    if (exact_rows_ != args_.batch) {
        screened_ = memory_.screened.reserve(
            (args_.batch - exact_rows_) *
            greatest_values(decoder_.ends().screen->packed().matrix(), dense_));
    }
}

// Layers of one window share a plan; all share the memory.
void DecodeStep::prepare_attention(const std::vector<std::int64_t>& windows, StepMemory& memory) {
    memory.plans.resize(windows.size());
    DecoderLayer layer{};
    for (std::size_t i = 0; i < windows.size(); ++i) {
        layer.window = windows[i];
        const PagedAttentionArgs attention = attention_args(layer);
        memory.plans[i].build(attention, num_threads_);
        Memory(attention, memory.plans[i], memory.attention);
    }
}

PagedAttentionArgs DecodeStep::attention_args(const DecoderLayer& layer) const {
    PagedAttentionArgs attention{};
    attention.query = query_;
    attention.tables = args_.tables;
    attention.rows = args_.rows;
    attention.lengths = args_.lengths;
    attention.out = attended_;
    attention.batch = args_.batch;
    attention.heads = shape_.heads;
    attention.kv_heads = shape_.kv_heads;
    attention.head_dim = shape_.head_dim;
    attention.num_blocks = args_.num_blocks;
    attention.block_size = args_.block_size;
    attention.num_tables = args_.num_tables;
    attention.table_width = args_.table_width;
    attention.kv_type = args_.kv_type;
    attention.scale = shape_.attention_scale;
    attention.window = layer.window;
    attention.rounding = rounding_;
    return attention;
}

char* DecodeStep::kv_of(std::int64_t layer) const {
    const std::int64_t layer_bytes = args_.num_blocks * 2 * shape_.kv_heads * args_.block_size *
                                     shape_.head_dim * element_bytes(args_.kv_type);
    return static_cast<char*>(args_.kv) + layer * layer_bytes;
}

void DecodeStep::embed(const Team& team) const {
    const DecoderEnds& ends = decoder_.ends();
    const std::int64_t n = shape_.hidden;
    for (std::int64_t row = team.index; row < args_.batch; row += team.count) {
        const std::int64_t token = args_.token_ids[row];
        float* const to = hidden_ + row * n;
        const float scale = shape_.embedding_scale;
        switch (ends.embedding_type) {
            case ElementType::kFloat32:
                widen_row<float>(ends.embedding, token, n, scale, to);
                break;
            case ElementType::kFloat16: widen_row<Half>(ends.embedding, token, n, scale, to); break;
            case ElementType::kBFloat16:
                widen_row<BFloat16>(ends.embedding, token, n, scale, to);
                break;
        }
    }
    team.wait();
}

void DecodeStep::pre_attention(std::int64_t layer, const Team& team) const {
    const DecoderLayer& parts = decoder_.layer(layer);
    norm_rows(hidden_, parts.input_norm, normed_, team);
    multiply(*parts.qkv, normed_, {Finish::kStore, Activation::kSilu, qkv_, shape_.qkv_size()},
             layer * kProducts + kQkv, team);
    char* const kv = kv_of(layer);
    for (std::int64_t row = team.index; row < args_.batch; row += team.count)
        write_row(parts, row, kv);
    team.wait();
}

// One row's queries, ready for attention, and its keys and values, in their slot.
void DecodeStep::write_row(const DecoderLayer& layer, std::int64_t row, char* kv) const {
    const std::int64_t position = args_.lengths[row] - 1;
    const float* const angles = layer.rope + position * layer.rotary_dim;
    float* const from = qkv_ + row * shape_.qkv_size();
    const std::int64_t size = shape_.head_dim;
    for (std::int64_t h = 0; h < shape_.heads + shape_.kv_heads; ++h) {
        float* const head = from + h * size;
        const float* const norm = h < shape_.heads ? layer.q_norm : layer.k_norm;
        if (norm != nullptr) dense_.rms_norm(head, size, norm, shape_.norm_eps, head);
        dense_.rotate(head, angles, layer.rotary_dim / 2);
    }
    std::copy_n(from, shape_.query_size(), query_ + row * shape_.query_size());
    const std::int64_t block =
        args_.tables[args_.rows[row] * args_.table_width + position / args_.block_size];
    const std::int64_t half_bytes =
        shape_.kv_heads * args_.block_size * size * element_bytes(args_.kv_type);
    char* const slot = kv + block * 2 * half_bytes +
                       position % args_.block_size * size * element_bytes(args_.kv_type);
    const float* const keys = from + shape_.query_size();
    store_heads(keys, slot);
    store_heads(keys + shape_.kv_heads * size, slot + half_bytes);
}

void DecodeStep::store_heads(const float* heads, char* to) const {
    const std::int64_t stride = args_.block_size * shape_.head_dim * element_bytes(args_.kv_type);
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h)
        dense_.store(heads + h * shape_.head_dim, shape_.head_dim, args_.kv_type, to + h * stride);
}

void DecodeStep::attention(std::int64_t layer, const Team& team) const {
    const DecoderLayer& parts = decoder_.layer(layer);
    PagedAttentionArgs attention = attention_args(parts);
    attention.kv = kv_of(layer);
    const auto window = std::find(windows_.begin(), windows_.end(), parts.window);
    const AttentionPlan& plan = memory_.plans[static_cast<std::size_t>(window - windows_.begin())];
    const Memory memory(attention, plan, memory_.attention);
    const AttentionRun run(attention, plan, memory, span_);
    for (int part = team.index; part < num_threads_; part += team.count) run.run(part);
    team.wait();
    if (num_threads_ == 1) return;
    for (int part = team.index; part < num_threads_; part += team.count) run.close(part);
    team.wait();
}

void DecodeStep::post_attention(std::int64_t layer, const Team& team) const {
    const DecoderLayer& parts = decoder_.layer(layer);
    const std::int64_t tickets = layer * kProducts;
    add_projection(*parts.output, attended_, parts.output_norm, tickets + kOutput, team);
    norm_rows(hidden_, parts.feed_forward_norm, normed_, team);
    multiply(*parts.gate_up, normed_, {Finish::kGate, parts.activation, inner_, shape_.inner},
             tickets + kGateUp, team);
    add_projection(*parts.down, inner_, parts.feed_forward_output_norm, tickets + kDown, team);
}

void DecodeStep::head(const Team& team) const {
    const DecoderEnds& ends = decoder_.ends();
    const std::int64_t n = shape_.hidden;
    const std::int64_t vocab = shape_.vocab;
    const std::int64_t tickets = decoder_.num_layers() * kProducts;
    const auto row_of = [&](std::int64_t i) { return memory_.order[static_cast<std::size_t>(i)]; };
    for (std::int64_t i = team.index; i < args_.batch; i += team.count) {
        dense_.rms_norm(hidden_ + row_of(i) * n, n, ends.final_norm, shape_.norm_eps,
                        normed_ + i * n);
    }
    team.wait();
    const std::int64_t screened = args_.batch - exact_rows_;
    if (exact_rows_ != 0) {
        multiply_rows(*ends.head, normed_, exact_rows_,
                      {Finish::kStore, Activation::kSilu, scores_, vocab}, tickets + kHead, team);
    }
    for (std::int64_t i = team.index; i < exact_rows_; i += team.count)
        tell_exact(row_of(i), scores_ + i * vocab);
    if (screened != 0) {
        const PackedLinear& packed = ends.screen->packed();
        const std::int64_t values = greatest_values(packed.matrix(), dense_);
        const float* const x = normed_ + exact_rows_ * n;
        const QuantisedRows quantised =
            multiply_rows(packed, x, screened,
                          {Finish::kGreatest, Activation::kSilu, screened_, values},
                          tickets + kScreen, team)
                .quantised;
        for (std::int64_t i = team.index; i < screened; i += team.count) {
            const GreatestLogit found = ends.screen->greatest(x + i * n, rows_from(quantised, i),
                                                              screened_ + i * values, dense_);
            args_.best[row_of(exact_rows_ + i)] = found.index;
            args_.finite[row_of(exact_rows_ + i)] = found.finite;
        }
    }
    team.wait();
}

void DecodeStep::tell_exact(std::int64_t row, const float* logits) const {
    float* const to = args_.logits + row * shape_.vocab;
    if (to != logits) std::copy_n(logits, shape_.vocab, to);
    args_.best[row] = dense_.argmax(to, shape_.vocab, &args_.finite[row]);
}

// hidden += the product, normalised first where the model does so.
void DecodeStep::add_projection(const PackedLinear& linear, const float* x, const float* norm,
                                std::int64_t ticket, const Team& team) const {
    const std::int64_t n = shape_.hidden;
    if (norm == nullptr) {
        multiply(linear, x, {Finish::kAdd, Activation::kSilu, hidden_, n}, ticket, team);
        return;
    }
    multiply(linear, x, {Finish::kStore, Activation::kSilu, projected_, n}, ticket, team);
    for (std::int64_t row = team.index; row < args_.batch; row += team.count) {
        float* const y = projected_ + row * n;
        dense_.rms_norm(y, n, norm, shape_.norm_eps, y);
        dense_.add(hidden_ + row * n, y, n);
    }
    team.wait();
}

void DecodeStep::norm_rows(const float* x, const float* weight, float* out,
                           const Team& team) const {
    const std::int64_t n = shape_.hidden;
    for (std::int64_t row = team.index; row < args_.batch; row += team.count)
        dense_.rms_norm(x + row * n, n, weight, shape_.norm_eps, out + row * n);
    team.wait();
}

void DecodeStep::multiply(const PackedLinear& linear, const float* x, const LinearOutput& output,
                          std::int64_t ticket, const Team& team) const {
    multiply_rows(linear, x, args_.batch, output, ticket, team);
}

// Returns the rows as they were multiplied; they last until the next product.
LinearInput DecodeStep::multiply_rows(const PackedLinear& linear, const float* x, std::int64_t rows,
                                      const LinearOutput& output, std::int64_t ticket,
                                      const Team& team) const {
    const MatrixView& matrix = linear.matrix();
    const LinearInput input =
        prepare_input(matrix, x, matrix.inputs, rows, rounding_, prepared_, dense_, team);
    run_linear(linear, input, output, dense_, team,
               memory_.tickets[static_cast<std::size_t>(ticket)]);
    team.wait();
    return input;
}

}  // namespace dualpace
