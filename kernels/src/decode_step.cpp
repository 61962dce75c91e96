#include "decode_step.h"

#include <algorithm>

#include "dualpace/vec/scalar.h"

namespace dualpace {
namespace {

// Products of a layer, in order; they number its tickets.
enum Product : std::int64_t { kQkv, kOutput, kGateUp, kDown, kProducts };

std::int64_t element_bytes(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

template <class T>
void widen_row(const void* from, std::int64_t row, std::int64_t n, float scale, float* to) {
    const T* elements = static_cast<const T*>(from) + row * n;
    for (std::int64_t i = 0; i < n; ++i) to[i] = widen(elements[i]) * scale;
}

}  // namespace

PagedAttentionArgs attention_args(const DecoderShape& shape, const StepArgs& args,
                                  std::int64_t window) {
    PagedAttentionArgs attention{};
    attention.tables = args.tables;
    attention.rows = args.rows;
    attention.lengths = args.lengths;
    attention.batch = args.batch;
    attention.heads = shape.heads;
    attention.kv_heads = shape.kv_heads;
    attention.head_dim = shape.head_dim;
    attention.num_blocks = args.num_blocks;
    attention.block_size = args.block_size;
    attention.num_tables = args.num_tables;
    attention.table_width = args.table_width;
    attention.kv_type = args.kv_type;
    attention.scale = shape.attention_scale;
    attention.window = window;
    return attention;
}

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
    memory.tickets.resize(static_cast<std::size_t>(decoder.num_layers() * kProducts));
    for (Ticket& ticket : memory.tickets) ticket.reset();
    prepare_attention(windows, memory);
}

// Layers of one window share a plan; all share the memory.
void DecodeStep::prepare_attention(const std::vector<std::int64_t>& windows, StepMemory& memory) {
    memory.plans.resize(windows.size());
    for (std::size_t i = 0; i < windows.size(); ++i) {
        const PagedAttentionArgs attention = attention_args(shape_, args_, windows[i]);
        memory.plans[i].build(attention, num_threads_);
        Memory(attention, memory.plans[i], memory.attention);
    }
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

void DecodeStep::pre_attention(std::int64_t layer, const Team& team, Beside* beside) const {
    const DecoderLayer& parts = decoder_.layer(layer);
    norm_rows(hidden_, parts.input_norm, normed_, team);
    multiply(*parts.qkv, normed_, {Finish::kStore, Activation::kSilu, qkv_, shape_.qkv_size()},
             layer * kProducts + kQkv, team, beside);
    char* const kv = kv_of(layer);
    const std::int64_t size = shape_.qkv_size();
    each_row(team, qkv_, size, size, args_.batch,
             [&](std::int64_t row) { write_row(parts, row, kv); });
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

LayerAttention::LayerAttention(const DecodeStep& step, std::int64_t layer)
    : args_(step.layer_attention_args(layer)),
      plan_(step.plan_of(layer)),
      memory_(args_, plan_, step.memory_.attention),
      run_(args_, plan_, memory_, step.span_) {}

PagedAttentionArgs DecodeStep::layer_attention_args(std::int64_t layer) const {
    PagedAttentionArgs attention = attention_args(shape_, args_, decoder_.layer(layer).window);
    attention.query = query_;
    attention.kv = kv_of(layer);
    attention.out = attended_;
    attention.rounding = rounding_;
    return attention;
}

const AttentionPlan& DecodeStep::plan_of(std::int64_t layer) const {
    const auto window = std::find(windows_.begin(), windows_.end(), decoder_.layer(layer).window);
    return memory_.plans[static_cast<std::size_t>(window - windows_.begin())];
}

void DecodeStep::attention(std::int64_t layer, const Team& team) const {
    const LayerAttention attention(*this, layer);
    for (int part = team.index; part < num_threads_; part += team.count) attention.run().run(part);
    team.wait();
    close_attention(attention, team);
}

void DecodeStep::close_attention(const LayerAttention& attention, const Team& team) const {
    if (num_threads_ == 1) return;
    for (int part = team.index; part < num_threads_; part += team.count)
        attention.run().close(part);
    team.wait();
}

void DecodeStep::post_attention(std::int64_t layer, const Team& team, Beside* beside) const {
    const DecoderLayer& parts = decoder_.layer(layer);
    const std::int64_t tickets = layer * kProducts;
    add_projection(*parts.output, attended_, parts.output_norm, tickets + kOutput, team, beside);
    norm_rows(hidden_, parts.feed_forward_norm, normed_, team);
    multiply(*parts.gate_up, normed_, {Finish::kGate, parts.activation, inner_, shape_.inner},
             tickets + kGateUp, team, beside);
    add_projection(*parts.down, inner_, parts.feed_forward_output_norm, tickets + kDown, team,
                   beside);
}

// hidden += the product, normalised first where the model does so.
void DecodeStep::add_projection(const PackedLinear& linear, const float* x, const float* norm,
                                std::int64_t ticket, const Team& team, Beside* beside) const {
    const std::int64_t n = shape_.hidden;
    if (norm == nullptr) {
        multiply(linear, x, {Finish::kAdd, Activation::kSilu, hidden_, n}, ticket, team, beside);
        return;
    }
    multiply(linear, x, {Finish::kStore, Activation::kSilu, projected_, n}, ticket, team, beside);
    each_row(team, projected_, n, n, args_.batch, [&](std::int64_t row) {
        float* const y = projected_ + row * n;
        dense_.rms_norm(y, n, norm, shape_.norm_eps, y);
        dense_.add(hidden_ + row * n, y, n);
    });
    team.wait();
}

void DecodeStep::norm_rows(const float* x, const float* weight, float* out,
                           const Team& team) const {
    const std::int64_t n = shape_.hidden;
    each_row(team, x, n, n, args_.batch, [&](std::int64_t row) {
        dense_.rms_norm(x + row * n, n, weight, shape_.norm_eps, out + row * n);
    });
    team.wait();
}

void DecodeStep::multiply(const PackedLinear& linear, const float* x, const LinearOutput& output,
                          std::int64_t ticket, const Team& team, Beside* beside) const {
    multiply_rows({linear, x, args_.batch, rounding_, prepared_}, output, dense_, team,
                  memory_.tickets[static_cast<std::size_t>(ticket)], beside);
}

}  // namespace dualpace
