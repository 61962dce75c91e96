// From a finished tile to where its outputs belong. Private to dense_template.h.
#pragma once

#include "dualpace/dense/activations.h"

namespace dualpace {
namespace {

template <class V>
DUALPACE_INLINE typename V::F with_bias(const float* tile, const float* bias, std::int64_t column) {
    const typename V::F v = V::load(tile + column);
    return bias == nullptr ? v : V::add(v, V::load(bias + column % kPanelOutputs));
}

template <class V, bool kAdding>
void finish_plain(const FinishTask& task) {
    for (std::int64_t r = 0; r < task.rows; ++r) {
        const float* tile = task.tile + r * kTileOutputs;
        float* out = task.out + r * task.out_stride;
        for (std::int64_t c = 0; c < task.outputs; c += V::kLanes) {
            const float* bias = c < kPanelOutputs ? task.first_bias : task.second_bias;
            typename V::F v = with_bias<V>(tile, bias, c);
            const std::int64_t left = task.outputs - c;
            if constexpr (kAdding) v = V::add(load_part<V>(out + c, left), v);
            store_part<V>(out + c, v, left);
        }
    }
}

template <class V>
void finish_gate(const FinishTask& task) {
    for (std::int64_t r = 0; r < task.rows; ++r) {
        const float* tile = task.tile + r * kTileOutputs;
        for (std::int64_t c = 0; c < task.outputs; c += V::kLanes) {
            const typename V::F g =
                activate<V>(task.activation, with_bias<V>(tile, task.first_bias, c));
            const typename V::F up = with_bias<V>(tile, task.second_bias, c + kPanelOutputs);
            store_part<V>(task.out + r * task.out_stride + c, V::mul(g, up), task.outputs - c);
        }
    }
}

template <class V>
void finish_greatest(const FinishTask& task) {
    for (std::int64_t r = 0; r < task.rows; ++r) {
        const float* tile = task.tile + r * kTileOutputs;
        alignas(64) float filled[kTileOutputs];
        if (task.outputs < kTileOutputs) {
            for (std::int64_t c = 0; c < kTileOutputs; ++c)
                filled[c] = tile[c < task.outputs ? c : 0];
            tile = filled;
        }
        typename V::F greatest = V::load(tile);
        for (std::int64_t c = V::kLanes; c < kTileOutputs; c += V::kLanes)
            greatest = V::max(V::load(tile + c), greatest);
        for (std::int64_t c = 0; c < kTileOutputs; c += V::kLanes)
            greatest = V::fma(V::load(tile + c), V::zero(), greatest);
        V::store(task.out + r * task.out_stride, greatest);
    }
}

template <class V>
void finish(const FinishTask& task) {
    switch (task.finish) {
        case Finish::kStore: finish_plain<V, false>(task); break;
        case Finish::kAdd: finish_plain<V, true>(task); break;
        case Finish::kGate: finish_gate<V>(task); break;
        case Finish::kGreatest: finish_greatest<V>(task); break;
    }
}

}  // namespace
}  // namespace dualpace
