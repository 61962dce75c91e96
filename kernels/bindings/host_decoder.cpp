// A decoder's step on the host.
#include "dualpace/host_decoder.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>

#include <array>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "array_view.h"
#include "bindings.h"
#include "dualpace/threads.h"

namespace nb = nanobind;

namespace dualpace {
namespace {

Activation parse_activation(std::string_view name) {
    if (name == "silu") return Activation::kSilu;
    if (name == "gelu") return Activation::kGelu;
    if (name == "gelu_tanh") return Activation::kGeluTanh;
    throw std::invalid_argument("activation: '" + std::string(name) +
                                "' is not one of silu, gelu, gelu_tanh");
}

// Holds what the decoder points into.
class BoundDecoder {
  public:
    BoundDecoder(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                 std::int64_t inner, float norm_eps, float attention_scale, float embedding_scale) {
        shape_.heads = heads;
        shape_.kv_heads = kv_heads;
        shape_.head_dim = head_dim;
        shape_.inner = inner;
        shape_.norm_eps = norm_eps;
        shape_.attention_scale = attention_scale;
        shape_.embedding_scale = embedding_scale;
    }

    // Returns the bytes of the head's screen.
    std::int64_t set_ends(nb::handle embedding, nb::handle final_norm, nb::handle head,
                          std::int64_t screening_threads) {
        const ArrayView& table = keep("embedding", embedding);
        table.require_rank({"vocab", "hidden"});
        shape_.vocab = table.size(0);
        shape_.hidden = table.size(1);
        ends_.embedding = table.data();
        ends_.embedding_type = table.element_type();
        ends_.final_norm = vector("final_norm", final_norm, shape_.hidden);
        ends_.head = linear(head);
        ends_.screen = nullptr;
        if (screening_threads != 0) {
            check_num_threads(screening_threads);
            screen_ = HeadScreen::of(*ends_.head, static_cast<int>(screening_threads));
            ends_.screen = screen_.get();
        }
        decoder_.reset();
        return ends_.screen == nullptr ? 0 : ends_.screen->packed().num_bytes();
    }

    void add_layer(nb::handle input_norm, nb::handle qkv, nb::handle q_norm, nb::handle k_norm,
                   nb::handle output, nb::handle output_norm, nb::handle feed_forward_norm,
                   nb::handle gate_up, nb::handle down, nb::handle feed_forward_output_norm,
                   nb::handle rope, std::string_view activation, std::int64_t window) {
        if (ends_.head == nullptr)
            throw std::invalid_argument("add_layer: set_ends must come first");
        DecoderLayer layer{};
        layer.input_norm = vector("input_norm", input_norm, shape_.hidden);
        layer.qkv = linear(qkv);
        layer.q_norm = vector("q_norm", q_norm, shape_.head_dim);
        layer.k_norm = vector("k_norm", k_norm, shape_.head_dim);
        layer.output = linear(output);
        layer.output_norm = vector("output_norm", output_norm, shape_.hidden);
        layer.feed_forward_norm = vector("feed_forward_norm", feed_forward_norm, shape_.hidden);
        layer.gate_up = linear(gate_up);
        layer.down = linear(down);
        layer.feed_forward_output_norm =
            vector("feed_forward_output_norm", feed_forward_output_norm, shape_.hidden);
        layer.activation = parse_activation(activation);
        const ArrayView& table = keep("rope", rope);
        table.require_rank({"positions", "rotary_dim"});
        if (!layers_.empty())
            table.require_size(0, "positions", shape_.positions, "in the first layer");
        shape_.positions = table.size(0);
        layer.rope = table.floats();
        layer.rotary_dim = table.size(1);
        layer.window = window;
        layers_.push_back(layer);
        decoder_.reset();
    }

    // To be called when all parts are there; throws std::invalid_argument where they don't fit.
    void complete() {
        if (layers_.empty()) throw std::invalid_argument("complete: the decoder has no layers");
        decoder_ = std::make_unique<HostDecoder>(shape_, ends_, layers_);
    }

    HostDecoder& decoder() {
        if (!decoder_) throw std::invalid_argument("step: complete must come first");
        return *decoder_;
    }

    // Held during a step: a decoder has one working memory.
    std::mutex& stepping() { return stepping_; }

  private:
    const ArrayView& keep(const char* name, nb::handle array) {
        kept_.push_back(nb::borrow(array));
        return arrays_.emplace_back(name, array, Access::kRead);
    }
    const float* vector(const char* name, nb::handle array, std::int64_t size) {
        if (array.is_none()) return nullptr;
        const ArrayView& view = keep(name, array);
        view.require_rank({"size"});
        view.require_size(0, "size", size, "of the model");
        return view.floats();
    }
    const PackedLinear* linear(nb::handle packed) {
        kept_.push_back(nb::borrow(packed));
        return nb::cast<const PackedLinear*>(packed);
    }

    DecoderShape shape_{};
    DecoderEnds ends_{};
    std::unique_ptr<HeadScreen> screen_;
    std::vector<DecoderLayer> layers_;
    std::vector<nb::object> kept_;
    std::deque<ArrayView> arrays_;
    std::unique_ptr<HostDecoder> decoder_;
    std::mutex stepping_;
};

struct Batch {
    ArrayView token_ids, rows, lengths, block_tables, kv, logits, best, finite;
    std::optional<ArrayView> wanted;
};

void check_shapes(const Batch& a, const HostDecoder& decoder) {
    a.token_ids.require_rank({"batch"});
    a.rows.require_rank({"batch"});
    a.lengths.require_rank({"batch"});
    a.block_tables.require_rank({"num_tables", "table_width"});
    a.kv.require_rank({"layers", "num_blocks", "2", "kv_heads", "block_size", "head_dim"});
    a.logits.require_rank({"capacity", "vocab"});
    a.best.require_rank({"capacity"});
    a.finite.require_rank({"capacity"});
    for (const ArrayView* array : {&a.rows, &a.lengths})
        array->require_size(0, "batch", a.token_ids.size(0), "in token_ids");
    if (a.logits.size(0) < a.token_ids.size(0))
        a.logits.require_size(0, "capacity", a.token_ids.size(0), "in token_ids, or more");
    for (const ArrayView* array : {&a.best, &a.finite})
        array->require_size(0, "capacity", a.logits.size(0), "in logits");
    a.logits.require_size(1, "vocab", decoder.shape().vocab, "of the model");
    if (a.wanted) {
        a.wanted->require_rank({"batch"});
        a.wanted->require_size(0, "batch", a.token_ids.size(0), "in token_ids");
    }
    a.kv.require_size(0, "layers", decoder.num_layers(), "of the model");
    a.kv.require_size(2, "axis 2", 2, "it holds keys and values");
    a.kv.require_size(3, "kv_heads", decoder.shape().kv_heads, "of the model");
    a.kv.require_size(5, "head_dim", decoder.shape().head_dim, "of the model");
}

StepArgs to_args(const Batch& a) {
    StepArgs args{};
    args.token_ids = reinterpret_cast<const std::int64_t*>(a.token_ids.int64s());
    args.rows = a.rows.int32s();
    args.lengths = a.lengths.int32s();
    args.tables = a.block_tables.int32s();
    args.batch = a.token_ids.size(0);
    args.capacity = a.logits.size(0);
    args.num_tables = a.block_tables.size(0);
    args.table_width = a.block_tables.size(1);
    args.kv = const_cast<void*>(a.kv.data());  // a view for writing
    args.kv_type = a.kv.element_type();
    args.num_blocks = a.kv.size(1);
    args.block_size = a.kv.size(4);
    args.wanted = a.wanted ? a.wanted->bools() : nullptr;
    args.wanted_rows = args.batch;
    args.logits = a.logits.writable_floats();
    args.best = a.best.writable_int64s();
    args.finite = a.finite.writable_bools();
    return args;
}

// Copies of what a Python function returned of those who join.
StepRows joining(nb::handle returned, std::int64_t room) {
    if (returned.is_none()) return {};
    const auto [ids, tables, ends] = nb::cast<std::array<nb::object, 3>>(returned);
    const ArrayView token_ids("token_ids of newcomers", ids, Access::kRead);
    const ArrayView rows("rows of newcomers", tables, Access::kRead);
    const ArrayView lengths("lengths of newcomers", ends, Access::kRead);
    const std::int64_t count = token_ids.size(0);
    for (const ArrayView* array : {&token_ids, &rows, &lengths}) {
        array->require_rank({"newcomers"});
        array->require_size(0, "newcomers", count, "in token_ids");
    }
    if (count > room) {
        throw std::invalid_argument("newcomers: are " + std::to_string(count) +
                                    ", there is room for " + std::to_string(room));
    }
    const auto* const first = reinterpret_cast<const std::int64_t*>(token_ids.int64s());
    return {{first, first + count},
            {rows.int32s(), rows.int32s() + count},
            {lengths.int32s(), lengths.int32s() + count}};
}

// A Python function as a step calls it: with the interpreter lock, and only until it raises.
class Serving {
  public:
    // `room`: for rows that join.
    Serving(nb::handle function, std::int64_t room) : function_(function), room_(room) {}
    StepRows operator()(std::int64_t behind) {
        if (raised_) return {};
        const nb::gil_scoped_acquire acquire;
        try {
            const nb::object told = room_ == 0 ? nb::none() : nb::object(nb::int_(behind));
            StepRows came = joining(function_(told), room_);
            room_ -= came.count();
            return came;
        } catch (...) {
            raised_ = std::current_exception();
            return {};
        }
    }
    void rethrow() const {
        if (raised_) std::rethrow_exception(raised_);
    }

  private:
    nb::handle function_;
    std::int64_t room_;
    std::exception_ptr raised_;
};

const std::int32_t* checked_flag(const std::optional<ArrayView>& flag) {
    if (!flag) return nullptr;
    flag->require_rank({"count"});
    flag->require_size(0, "count", 1, "it is one word");
    return flag->int32s();
}

std::int64_t step(BoundDecoder& self, nb::handle token_ids, nb::handle rows, nb::handle lengths,
                  nb::handle block_tables, nb::handle kv, nb::handle logits, nb::handle best,
                  nb::handle finite, nb::handle wanted, bool rounding, std::int64_t num_threads,
                  std::optional<std::string_view> isa, std::int64_t rows_in_turns, nb::handle flag,
                  nb::handle serve) {
    Batch batch{{"token_ids", token_ids, Access::kRead},
                {"rows", rows, Access::kRead},
                {"lengths", lengths, Access::kRead},
                {"block_tables", block_tables, Access::kRead},
                {"kv", kv, Access::kWrite},
                {"logits", logits, Access::kWrite},
                {"best", best, Access::kWrite},
                {"finite", finite, Access::kWrite},
                std::nullopt};
    if (!wanted.is_none()) batch.wanted.emplace("wanted", wanted, Access::kRead);
    HostDecoder& decoder = self.decoder();
    check_shapes(batch, decoder);
    const StepArgs args = to_args(batch);
    check_num_threads(num_threads);
    const Isa level = resolve_isa(isa ? std::optional(parse_isa(*isa)) : std::nullopt);
    if (rows_in_turns < 0) {
        throw std::invalid_argument("rows_in_turns: is " + std::to_string(rows_in_turns) +
                                    ", it must be 0 or more");
    }
    if (flag.is_none() != serve.is_none())
        throw std::invalid_argument("flag, serve: one goes with the other");
    std::optional<ArrayView> word;
    if (!flag.is_none()) word.emplace("flag", flag, Access::kRead);
    Serving serving(serve, args.capacity - args.batch);
    const Interruption interruption{checked_flag(word), std::ref(serving)};
    std::int64_t total = 0;
    {
        const nb::gil_scoped_release release;
        const std::lock_guard lock(self.stepping());
        total = decoder.step(args, {rounding, static_cast<int>(num_threads), level, rows_in_turns},
                             interruption);
    }
    serving.rethrow();
    return total;
}

}  // namespace

void bind_host_decoder(nb::module_& module) {
    nb::class_<BoundDecoder>(module, "HostDecoder", "See dualpace.kernels.HostDecoder.")
        .def(
            nb::init<std::int64_t, std::int64_t, std::int64_t, std::int64_t, float, float, float>(),
            nb::kw_only(), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim"),
            nb::arg("inner"), nb::arg("norm_eps"), nb::arg("attention_scale"),
            nb::arg("embedding_scale"))
        .def("set_ends", &BoundDecoder::set_ends, nb::kw_only(), nb::arg("embedding"),
             nb::arg("final_norm"), nb::arg("head"), nb::arg("screening_threads"),
             nb::sig("def set_ends(self, *, embedding: object, final_norm: object, head: "
                     "PackedLinear, screening_threads: int) -> int"))
        .def("add_layer", &BoundDecoder::add_layer, nb::kw_only(), nb::arg("input_norm"),
             nb::arg("qkv"), nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("output"),
             nb::arg("output_norm").none(), nb::arg("feed_forward_norm"), nb::arg("gate_up"),
             nb::arg("down"), nb::arg("feed_forward_output_norm").none(), nb::arg("rope"),
             nb::arg("activation"), nb::arg("window"),
             nb::sig("def add_layer(self, *, input_norm: object, qkv: PackedLinear, q_norm: object "
                     "| None, k_norm: object | None, output: PackedLinear, output_norm: object | "
                     "None, feed_forward_norm: object, gate_up: PackedLinear, down: PackedLinear, "
                     "feed_forward_output_norm: object | None, rope: object, activation: str, "
                     "window: int) -> None"))
        .def("complete", &BoundDecoder::complete, nb::sig("def complete(self) -> None"))
        .def("step", &step, nb::kw_only(), nb::arg("token_ids"), nb::arg("rows"),
             nb::arg("lengths"), nb::arg("block_tables"), nb::arg("kv"), nb::arg("logits"),
             nb::arg("best"), nb::arg("finite"), nb::arg("wanted").none(), nb::arg("rounding"),
             nb::arg("num_threads"), nb::arg("isa").none(), nb::arg("rows_in_turns"),
             nb::arg("flag").none(), nb::arg("serve").none(),
             nb::sig("def step(self, *, token_ids: object, rows: object, lengths: object, "
                     "block_tables: object, kv: object, logits: object, best: object, finite: "
                     "object, wanted: object | None, rounding: bool, num_threads: int, isa: str | "
                     "None, rows_in_turns: int, flag: object | None, serve: object | None) -> int"))
        .def_prop_ro(
            "stage_seconds", [](BoundDecoder& self) { return self.decoder().stage_seconds(); },
            nb::sig("def stage_seconds(self) -> list[float]"),
            "Of all steps: embed, pre-attention, attention, post-attention, head.")
        .def_prop_ro(
            "passes_in_turns", [](BoundDecoder& self) { return self.decoder().passes_in_turns(); },
            nb::sig("def passes_in_turns(self) -> int"), "See dualpace.kernels.HostDecoder.");
}

}  // namespace dualpace
