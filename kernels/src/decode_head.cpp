#include "decode_head.h"

#include <algorithm>
#include <numeric>

namespace dualpace {

DecodeHead::DecodeHead(const HostDecoder& decoder, const StepArgs& args, const float* hidden,
                       HeadMemory& memory, const StepWay& way)
    : decoder_(decoder),
      args_(args),
      dense_(dense_kernels(way.isa)),
      rounding_(way.rounding),
      hidden_(hidden),
      memory_(memory) {
    normed_ = memory.normed.reserve(args.batch * decoder.shape().hidden);
    prepared_ = memory.prepared.reserve(prepared_words(args.batch, decoder.shape().hidden));
    for (Ticket& ticket : memory.tickets) ticket.reset();
    order_rows();
}

bool DecodeHead::wanted(std::int64_t row) const {
    return args_.wanted == nullptr || row >= args_.wanted_rows || args_.wanted[row];
}

// Only the greatest logit of a row that is not wanted has to be right. Where activations are
// rounded the head is as fast as a screen of it.
void DecodeHead::order_rows() {
    const bool screens = decoder_.ends().screen != nullptr && !rounding_ && dense_.fast_quanta;
    memory_.order.resize(static_cast<std::size_t>(args_.batch));
    std::iota(memory_.order.begin(), memory_.order.end(), 0);
    const auto screened =
        std::stable_partition(memory_.order.begin(), memory_.order.end(),
                              [&](std::int64_t row) { return !screens || wanted(row); });
    exact_rows_ = screened - memory_.order.begin();
    const bool mixed = exact_rows_ != 0 && exact_rows_ != args_.batch;
    scores_ = mixed ? memory_.scores.reserve(exact_rows_ * decoder_.shape().vocab) : args_.logits;
    screened_ = nullptr;
    if (exact_rows_ != args_.batch) {
        screened_ = memory_.screened.reserve(
            (args_.batch - exact_rows_) *
            greatest_values(decoder_.ends().screen->packed().matrix(), dense_));
    }
}

void DecodeHead::run(const Team& team) const {
    const DecoderEnds& ends = decoder_.ends();
    const std::int64_t n = decoder_.shape().hidden;
    const std::int64_t vocab = decoder_.shape().vocab;
    const auto row_of = [&](std::int64_t i) { return memory_.order[static_cast<std::size_t>(i)]; };
    for (std::int64_t i = team.index; i < args_.batch; i += team.count) {
        dense_.rms_norm(hidden_ + row_of(i) * n, n, ends.final_norm, decoder_.shape().norm_eps,
                        normed_ + i * n);
    }
    team.wait();
    const std::int64_t screened = args_.batch - exact_rows_;
    if (exact_rows_ != 0) {
        multiply_rows({*ends.head, normed_, exact_rows_, rounding_, prepared_},
                      {Finish::kStore, Activation::kSilu, scores_, vocab}, dense_, team,
                      memory_.tickets[0]);
    }
    for (std::int64_t i = team.index; i < exact_rows_; i += team.count)
        tell_exact(row_of(i), scores_ + i * vocab);
    if (screened != 0) {
        const PackedLinear& packed = ends.screen->packed();
        const std::int64_t values = greatest_values(packed.matrix(), dense_);
        const float* const x = normed_ + exact_rows_ * n;
        const QuantisedRows quantised =
            multiply_rows({packed, x, screened, rounding_, prepared_},
                          {Finish::kGreatest, Activation::kSilu, screened_, values}, dense_, team,
                          memory_.tickets[1])
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

void DecodeHead::tell_exact(std::int64_t row, const float* logits) const {
    float* const to = args_.logits + row * decoder_.shape().vocab;
    if (to != logits) std::copy_n(logits, decoder_.shape().vocab, to);
    args_.best[row] = dense_.argmax(to, decoder_.shape().vocab, &args_.finite[row]);
}

}  // namespace dualpace
