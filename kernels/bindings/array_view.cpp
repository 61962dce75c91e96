#include "array_view.h"

#include <stdexcept>

namespace nb = nanobind;

namespace dualpace {
namespace {

// The part of DLPack's C exchange interface that is needed to borrow an array (DLPack 1.3, struct
// DLPackExchangeAPI). The array's type holds a capsule with it. Calling `__dlpack__` instead costs
// PyTorch 2 microseconds an array.
struct ExchangeApi {
    struct {
        std::uint32_t major;
        std::uint32_t minor;
    } version;
    ExchangeApi* previous;
    void* allocate;
    void* managed_from_object;
    void* managed_to_object;
    int (*borrow)(void* object,
                  nb::dlpack::dltensor* out);  // may be null; sets a Python error on failure
    void* current_stream;
};

constexpr std::uint32_t kExchangeMajor = 1;

const ExchangeApi* exchange_api(nb::handle object) {
    nb::object type = nb::borrow(object.type());
    nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
    if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
    const auto* api =
        static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    while (api != nullptr && api->version.major != kExchangeMajor) api = api->previous;
    return api != nullptr && api->borrow != nullptr ? api : nullptr;
}

}  // namespace

ArrayView::ArrayView(const char* name, nb::handle object, Access access) : name_(name) {
    import(object, access);
    require_dense_host_memory();
}

void ArrayView::import(nb::handle object, Access access) {
    if (const ExchangeApi* api = exchange_api(object)) {
        if (api->borrow(object.ptr(), &tensor_) != 0) throw nb::python_error();
        return;
    }
    bool taken = false;
    if (access == Access::kWrite) {
        taken = nb::try_cast(object, owner_);
    } else {
        nb::ndarray<nb::ro> array;
        taken = nb::try_cast(object, array);
        if (taken) owner_ = nb::ndarray<>(array);
    }
    if (!taken) {
        const std::string kind = access == Access::kWrite ? "a writable array" : "an array";
        const nb::str type = nb::type_name(object.type());
        throw nb::type_error(
            (std::string(name_) + ": " + kind + " is needed, not " + type.c_str()).c_str());
    }
    tensor_ = {owner_.data_handle(),
               {owner_.device_type(), owner_.device_id()},
               static_cast<std::int32_t>(owner_.ndim()),
               owner_.dtype(),
               const_cast<std::int64_t*>(owner_.shape_ptr()),
               const_cast<std::int64_t*>(owner_.stride_ptr()),
               owner_.byte_offset()};
}

void ArrayView::require_dense_host_memory() const {
    if (tensor_.device.device_type != nb::device::cpu::value &&
        tensor_.device.device_type != nb::device::cuda_host::value) {
        refuse("must be in host memory");
    }
    if (tensor_.strides == nullptr) return;
    std::int64_t expected = 1;
    bool dense = true;
    for (int axis = tensor_.ndim - 1; axis >= 0; --axis) {
        if (tensor_.shape[axis] == 0) return;
        dense = dense && (tensor_.shape[axis] == 1 || tensor_.strides[axis] == expected);
        expected *= tensor_.shape[axis];
    }
    if (!dense) refuse("of shape " + shape_text() + " must be contiguous (C order)");
}

void ArrayView::require_rank(std::initializer_list<const char*> dimensions) const {
    if (tensor_.ndim == static_cast<int>(dimensions.size())) return;
    std::string wanted;
    for (const char* dimension : dimensions)
        wanted += (wanted.empty() ? "" : ", ") + std::string(dimension);
    refuse("has shape " + shape_text() + ", it must be [" + wanted + "]");
}

void ArrayView::require_size(int axis, const char* axis_name, std::int64_t size,
                             const char* origin) const {
    if (tensor_.shape[axis] == size) return;
    refuse(std::string(axis_name) + " is " + std::to_string(tensor_.shape[axis]) + ", it must be " +
           std::to_string(size) + " as " + origin);
}

void* ArrayView::checked(nb::dlpack::dtype_code code, int bits) const {
    if (!is(code, bits)) {
        const char* kind = code == nb::dlpack::dtype_code::Float  ? "float"
                           : code == nb::dlpack::dtype_code::Bool ? "bool"
                                                                  : "int";
        refuse("is " + dtype_name() + ", it must be " + kind + std::to_string(bits));
    }
    return const_cast<void*>(data());
}

ElementType ArrayView::element_type() const {
    if (is(nb::dlpack::dtype_code::Float, 32)) return ElementType::kFloat32;
    if (is(nb::dlpack::dtype_code::Float, 16)) return ElementType::kFloat16;
    if (is(nb::dlpack::dtype_code::Bfloat, 16)) return ElementType::kBFloat16;
    refuse("is " + dtype_name() + ", it must be float32, float16 or bfloat16");
}

std::string ArrayView::dtype_name() const {
    const char* kind = "an unsupported type of ";
    switch (static_cast<nb::dlpack::dtype_code>(tensor_.dtype.code)) {
        case nb::dlpack::dtype_code::Int: kind = "int"; break;
        case nb::dlpack::dtype_code::UInt: kind = "uint"; break;
        case nb::dlpack::dtype_code::Float: kind = "float"; break;
        case nb::dlpack::dtype_code::Bfloat: kind = "bfloat"; break;
        case nb::dlpack::dtype_code::Complex: kind = "complex"; break;
        case nb::dlpack::dtype_code::Bool: return "bool";
        default: return kind + std::to_string(tensor_.dtype.bits) + " bits";
    }
    return kind + std::to_string(tensor_.dtype.bits);
}

std::string ArrayView::shape_text() const {
    std::string text;
    for (int axis = 0; axis < tensor_.ndim; ++axis) {
        text += (axis == 0 ? "" : ", ") + std::to_string(tensor_.shape[axis]);
    }
    return "[" + text + "]";
}

void ArrayView::refuse(const std::string& what) const {
    throw std::invalid_argument(std::string(name_) + ": " + what);
}

}  // namespace dualpace
