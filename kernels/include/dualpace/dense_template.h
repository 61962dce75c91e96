// The dense stages' kernels, written once over any vector type. Include after one of the vector
// headers.
#pragma once

#include "dualpace/dense/activations.h"
#include "dualpace/dense/finish.h"
#include "dualpace/dense/peak.h"
#include "dualpace/dense/product.h"
#include "dualpace/dense/quantise.h"
#include "dualpace/dense/rows.h"
#include "dualpace/dense_kernels.h"

namespace dualpace {
namespace {

template <class V>
constexpr DenseKernels dense_table() {
    DenseKernels table{product<V>, nullptr,  finish<V>, rms_norm<V>,       add<V>,  gate<V>,
                       rotate<V>,  store<V>, argmax<V>, block_greatest<V>, peak<V>, nullptr};
    table.quantised_product = quantised_product<V>;
    table.quantise = quantise<V>;
    table.quantised_peak = quantised_peak<V>;
    table.fast_quanta = V::kFastQuanta;
    table.greatest_lanes = V::kLanes;
    if constexpr (requires { typename V::Pairs; }) {
        table.rounded_product = rounded_product<V>;
        table.rounded_peak = rounded_peak<V>;
        table.rounded_quantised_product = rounded_quantised_product<V>;
    }
    return table;
}

}  // namespace
}  // namespace dualpace
