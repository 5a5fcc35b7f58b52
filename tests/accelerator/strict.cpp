// The device `strict`: memory on the host and the CPU's kernels behind the manners of an accelerator.
//
// Every operation on its tensors comes through `run_on_cpu`, which first refuses what CUDA and MPS refuse (operands on
// two devices, a generator of another device, float64 where that is switched off), counts, and then lets PyTorch's own
// CPU fallback do the arithmetic. Views and allocations are registered one by one: they launch no kernel.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <unordered_set>
#include <vector>

namespace {

constexpr auto STRICT = c10::DeviceType::PrivateUse1;
constexpr auto STRICT_KEY = c10::DispatchKey::PrivateUse1;
constexpr c10::DeviceIndex DEVICES = 2;

std::atomic<int64_t> operations{0}, copies{0}, uploads{0}, waits{0};
std::atomic<bool> has_float64{true};
thread_local c10::DeviceIndex current_index = 0;
thread_local bool in_fallback = false;  // the copies that the fallback makes are not the program's

c10::Device current_device() { return {STRICT, current_index}; }

c10::Device with_index(c10::Device device) { return {STRICT, device.has_index() ? device.index() : current_index}; }

// ---- memory, the current device, random numbers

struct Allocator final : at::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    constexpr size_t alignment = 64;
    void* data = bytes ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment) : nullptr;
    return {data, data, &std::free, current_device()};
  }
  at::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};
Allocator allocator;
REGISTER_ALLOCATOR(STRICT, &allocator);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return STRICT; }
  c10::Device getDevice() const override { return current_device(); }
  void setDevice(c10::Device device) const override { current_index = with_index(device).index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = current_device();
    setDevice(device);
    return before;
  }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, with_index(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  void synchronizeDevice(c10::DeviceIndex) const override { ++waits; }
  // Work is done when an operation returns, so events, which order the streams of two indices, have nothing to do.
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// A CPU generator that belongs to the device, except while a CPU kernel draws from it.
struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(uint64_t seed) : at::CPUGeneratorImpl(seed) { belong_to(STRICT); }
  void belong_to(c10::DeviceType type) {
    const bool strict = type == STRICT;
    device_ = strict ? c10::Device(STRICT, 0) : c10::Device(c10::kCPU);
    key_set_ = c10::DispatchKeySet(strict ? STRICT_KEY : c10::DispatchKey::CPU);
  }
};

const at::Generator& default_generator() {
  static const at::Generator generator = at::make_generator<Generator>(at::default_rng_seed_val);
  return generator;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::DeviceIndex deviceCount() const override { return DEVICES; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Generator>(0); }
};

// ---- allocations, copies and views

void check_dtype(c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(
      has_float64 || (dtype != c10::ScalarType::Double && dtype != c10::ScalarType::ComplexDouble),
      "Cannot make a float64 tensor on 'strict': this device has no float64");
}

at::Tensor empty(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  check_dtype(c10::dtype_or_default(dtype));
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      size, &allocator, c10::DispatchKeySet(STRICT_KEY), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<c10::Device> device, std::optional<bool>) {
  check_dtype(c10::dtype_or_default(dtype));
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      size, stride, &allocator, c10::DispatchKeySet(STRICT_KEY), c10::dtype_or_default(dtype));
}

// The same memory as a CPU tensor.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [keep = tensor](void*) {},
      tensor.options().device(c10::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (!in_fallback) ++(from.is_cpu() ? uploads : to.is_cpu() ? waits : copies);
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

const at::Tensor& resize(const at::Tensor& tensor, c10::SymIntArrayRef size, std::optional<c10::MemoryFormat> format) {
  return at::native::resize_(tensor, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  ++waits;
  return at::native::_local_scalar_dense_cpu(tensor);
}

at::Tensor as_strided(
    const at::Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(tensor, size, stride, offset);
}

at::Tensor reshape_alias(const at::Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(tensor, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor view(const at::Tensor& tensor, c10::SymIntArrayRef size) {
  return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor unfold(const at::Tensor& tensor, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(tensor, dimension, size, step);
}

at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& source) { return at::native::set_tensor_(tensor, source); }

at::Tensor& set_storage(at::Tensor& tensor, at::Storage source) { return at::native::set_(tensor, source); }

at::Tensor& set_storage_at(
    at::Tensor& tensor, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::cpu::set_(tensor, source, offset, size, stride);
}

int64_t math_attention(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
    std::optional<double>, bool) {
  return 0;  // scaled_dot_product_attention in single steps: there is no fused kernel
}

// ---- every other operation

// Operations that take operands of two devices on CUDA too: index lists may lie on the host.
const std::unordered_set<std::string> MAY_MIX = {
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index",
    "aten::copy_", "aten::_to_copy", "aten::_pin_memory"};

// Operations whose result has a size that only the device knows: the host waits for it.
const std::unordered_set<std::string> SIZED_BY_VALUES = {
    "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::repeat_interleave", "aten::bincount"};

// What one operation works on. A tensor without axes may come from anywhere, as a number does.
struct Operands {
  bool strict = false;
  c10::DeviceIndex index = -1;
  bool two_indices = false;
  std::string on_cpu;
  std::vector<Generator*> generators;

  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    strict |= tensor.device().type() == STRICT;
    if (tensor.dim() == 0) return;
    if (tensor.device().type() == STRICT) {
      two_indices |= index >= 0 && index != tensor.device().index();
      index = tensor.device().index();
    } else if (tensor.numel() > 0) {
      on_cpu = c10::str(tensor.scalar_type(), tensor.sizes());
    }
  }

  void add(const c10::IValue& value, const std::string& operation) {
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor> tensor : value.toOptionalTensorVector())
        if (tensor) add(*tensor);
    } else if (value.isDevice()) {
      strict |= value.toDevice().type() == STRICT;
    } else if (value.isGenerator()) {
      const auto generator = value.toGenerator();
      TORCH_CHECK(
          generator.device().type() == STRICT, "Expected a 'strict' device type for generator but found '",
          generator.device().type(), "' (", operation, ")");
      generators.push_back(static_cast<Generator*>(generator.unsafeGetGeneratorImpl()));
    }
  }
};

// While it lives, generators draw for the CPU and copies are the fallback's own.
struct Fallback {
  explicit Fallback(std::vector<Generator*> generators) : generators(std::move(generators)) { enter(true); }
  ~Fallback() { enter(false); }
  void enter(bool inside) {
    in_fallback = inside;
    for (auto* generator : generators) generator->belong_to(inside ? c10::kCPU : STRICT);
  }
  std::vector<Generator*> generators;
};

void run_on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto& name = operation.schema().name();
  Operands operands;
  for (const auto& value : torch::jit::last(*stack, operation.schema().arguments().size())) operands.add(value, name);
  TORCH_CHECK(
      !operands.strict || operands.on_cpu.empty() || MAY_MIX.count(name),
      "Expected all tensors to be on the same device, but found at least two devices, strict and cpu! (", name,
      ", on the cpu: ", operands.on_cpu, ")");
  TORCH_CHECK(
      !operands.two_indices || name == "aten::copy_",
      "Expected all tensors to be on the same device, but found at least two devices, strict:0 and strict:1! (", name,
      ")");
  ++operations;
  if (SIZED_BY_VALUES.count(name)) ++waits;
  const c10::OptionalDeviceGuard guard(
      operands.index >= 0 ? std::optional(c10::Device(STRICT, operands.index)) : std::nullopt);
  const Fallback fallback(operands.generators);
  at::native::cpu_fallback(operation, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("view", view);
  m.impl("unfold", unfold);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage_at);
  m.impl("_fused_sdp_choice", math_attention);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  m.attr("devices") = DEVICES;
  m.def("counts", [] { return std::array<int64_t, 4>{operations, copies, uploads, waits}; });
  m.def("set_float64", [](bool available) { has_float64 = available; });
}
