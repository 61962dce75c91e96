// AVX-512 with its instruction for whole numbers: products of pairs are summed in one step.
#pragma once

#include "dualpace/vec/avx512.h"

namespace dualpace {
namespace {

struct Avx512Vnni : Avx512 {
    static Q dot_quanta(Q a, Q b, Q sum) { return _mm512_dpwssd_epi32(sum, a, b); }
};

}  // namespace
}  // namespace dualpace
