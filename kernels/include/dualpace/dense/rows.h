// What is done to one row between products. Private to dense_template.h.
#pragma once

#include "dualpace/dense/parts.h"
#include "dualpace/element.h"

namespace dualpace {
namespace {

template <class V>
void rms_norm(const float* x, std::int64_t n, const float* weight, float eps, float* out) {
    typename V::F squares = V::zero();
    for (std::int64_t i = 0; i < n; i += V::kLanes) {
        const typename V::F v = load_part<V>(x + i, n - i);
        squares = V::fma(v, v, squares);
    }
    const float mean = sum_lanes<V>(squares) / static_cast<float>(n);
    const typename V::F factor = V::splat(1.0f / __builtin_sqrtf(mean + eps));
    for (std::int64_t i = 0; i < n; i += V::kLanes) {
        const std::int64_t left = n - i;
        const typename V::F v = V::mul(load_part<V>(x + i, left), factor);
        store_part<V>(out + i, V::mul(v, load_part<V>(weight + i, left)), left);
    }
}

template <class V>
void add(float* x, const float* y, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += V::kLanes) {
        const std::int64_t left = n - i;
        store_part<V>(x + i, V::add(load_part<V>(x + i, left), load_part<V>(y + i, left)), left);
    }
}

template <class V>
void rotate(float* head, const float* cos_sin, std::int64_t half) {
    for (std::int64_t i = 0; i < half; i += V::kLanes) {
        const std::int64_t left = half - i;
        const typename V::F cosine = load_part<V>(cos_sin + i, left);
        const typename V::F sine = load_part<V>(cos_sin + half + i, left);
        const typename V::F a = load_part<V>(head + i, left);
        const typename V::F b = load_part<V>(head + half + i, left);
        store_part<V>(head + i, V::sub(V::mul(a, cosine), V::mul(b, sine)), left);
        store_part<V>(head + half + i, V::fma(b, cosine, V::mul(a, sine)), left);
    }
}

template <class V, class T>
DUALPACE_INLINE void store_as(const float* from, std::int64_t n, T* to) {
    std::int64_t i = 0;
    for (; i + V::kLanes <= n; i += V::kLanes) V::store(to + i, V::load(from + i));
    if (i == n) return;
    T lanes[V::kLanes];
    V::store(lanes, load_part<V>(from + i, n - i));
    for (std::int64_t j = 0; i + j < n; ++j) to[i + j] = lanes[j];
}

template <class V>
void store(const float* from, std::int64_t n, ElementType type, void* to) {
    switch (type) {
        case ElementType::kFloat32: store_as<V>(from, n, static_cast<float*>(to)); break;
        case ElementType::kFloat16: store_as<V>(from, n, static_cast<Half*>(to)); break;
        case ElementType::kBFloat16: store_as<V>(from, n, static_cast<BFloat16*>(to)); break;
    }
}

// Raises `most` to the greatest of [n]; returns whether all are finite.
template <class V>
bool block_greatest(const float* x, std::int64_t n, float* most) {
    using F = typename V::F;
    F greatest[2] = {V::splat(*most), V::splat(*most)};
    // Stays zero for numbers; an infinity or what is no number makes it no number.
    F zeros[2] = {V::zero(), V::zero()};
    std::int64_t i = 0;
    for (; i + 2 * V::kLanes <= n; i += 2 * V::kLanes) {
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
            const F v = V::load(x + i + j * V::kLanes);
            greatest[j] = V::max(v, greatest[j]);
            zeros[j] = V::fma(v, V::zero(), zeros[j]);
        }
    }
    alignas(64) float lanes[V::kLanes];
    V::store(lanes, V::max(greatest[0], greatest[1]));
    for (const float lane : lanes) *most = lane > *most ? lane : *most;
    float zero = sum_lanes<V>(V::add(zeros[0], zeros[1]));
    for (; i < n; ++i) {
        *most = x[i] > *most ? x[i] : *most;
        zero += x[i] * 0.0f;
    }
    return zero == 0.0f;
}

// Block by block, so that the vectors look for the greatest value alone, and its place is sought in
// one block.
template <class V>
std::int64_t argmax(const float* x, std::int64_t n, bool* finite) {
    constexpr std::int64_t kBlock = 1024;
    float greatest = x[0];
    std::int64_t block = 0;
    bool broken = false;
    for (std::int64_t start = 0; start < n; start += kBlock) {
        const std::int64_t end = start + kBlock < n ? start + kBlock : n;
        float most = x[start];
        broken |= !block_greatest<V>(x + start, end - start, &most);
        if (most > greatest) {
            greatest = most;
            block = start;
        }
    }
    *finite = !broken;
    if (broken) return 0;
    std::int64_t at = block;
    while (x[at] != greatest) ++at;
    return at;
}

}  // namespace
}  // namespace dualpace
