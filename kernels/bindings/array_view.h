// Arrays of callers, seen as pointer, shape and element type. Takes anything that speaks DLPack or
// the buffer protocol: PyTorch tensors (bfloat16 included) and NumPy arrays.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "dualpace/element.h"

namespace dualpace {

enum class Access { kRead, kWrite };

// Valid while the Python object is alive and not resized.
class ArrayView {
  public:
    // `name` is the argument's, for messages. Throws nanobind::type_error if the object is no array
    // or cannot be written to as asked, std::invalid_argument if it is not dense, row-major, in
    // host memory.
    ArrayView(const char* name, nanobind::handle object, Access access);

    // Throws std::invalid_argument unless the rank is that of `dimensions`, which names each of
    // them.
    void require_rank(std::initializer_list<const char*> dimensions) const;
    // Throws std::invalid_argument unless size(axis) is `size`, which is that of `origin`.
    void require_size(int axis, const char* axis_name, std::int64_t size, const char* origin) const;

    std::int64_t size(int axis) const { return tensor_.shape[axis]; }
    bool is(nanobind::dlpack::dtype_code code, int bits) const {
        return tensor_.dtype.code == static_cast<std::uint8_t>(code) &&
               tensor_.dtype.bits == bits && tensor_.dtype.lanes == 1;
    }
    std::string dtype_name() const;

    // Throw std::invalid_argument unless the elements are of that type.
    const float* floats() const {
        return static_cast<const float*>(checked(nanobind::dlpack::dtype_code::Float, 32));
    }
    float* writable_floats() const {
        return static_cast<float*>(checked(nanobind::dlpack::dtype_code::Float, 32));
    }
    const std::int32_t* int32s() const {
        return static_cast<const std::int32_t*>(checked(nanobind::dlpack::dtype_code::Int, 32));
    }
    const std::uint64_t* int64s() const {
        return static_cast<const std::uint64_t*>(checked(nanobind::dlpack::dtype_code::Int, 64));
    }
    std::int64_t* writable_int64s() const {
        return static_cast<std::int64_t*>(checked(nanobind::dlpack::dtype_code::Int, 64));
    }
    const bool* bools() const {
        return static_cast<const bool*>(checked(nanobind::dlpack::dtype_code::Bool, 8));
    }
    bool* writable_bools() const {
        return static_cast<bool*>(checked(nanobind::dlpack::dtype_code::Bool, 8));
    }
    // Throws std::invalid_argument unless float32, float16 or bfloat16.
    ElementType element_type() const;
    const void* data() const {
        return static_cast<const char*>(tensor_.data) + tensor_.byte_offset;
    }

    [[noreturn]] void refuse(const std::string& what) const;

  private:
    void import(nanobind::handle object, Access access);
    void require_dense_host_memory() const;
    void* checked(nanobind::dlpack::dtype_code code, int bits) const;
    std::string shape_text() const;

    const char* name_;
    nanobind::dlpack::dltensor tensor_;
    nanobind::ndarray<> owner_;  // empty for arrays that were borrowed
};

}  // namespace dualpace
