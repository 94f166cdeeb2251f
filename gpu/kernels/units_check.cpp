#include "gpu/kernels/units_check.hpp"

#include <cstring>

#include "config/base/log.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/kernels/push_constants.hpp"
#include "gpu/kernels/units_fragments.hpp"

namespace bulkhead::gpu::kernels {
namespace {

static_assert(sizeof(UnitsFragmentsPush) == 32);

// Half of an integer below 2048.
std::uint16_t half_of(std::uint32_t value) {
  if (value == 0) return 0;
  std::uint32_t exponent = 0;
  while ((value >> exponent) > 1)
    ++exponent;
  return static_cast<std::uint16_t>(((exponent + 15) << 10) | ((value << (10 - exponent)) & 1023U));
}

}  // namespace

Result<bool> fragments_as_expected(Device& device) {
  if (!device.info().matrix_units || device.info().min_subgroup_size > 32 ||
      device.info().max_subgroup_size < 32) {
    return false;
  }
  BULKHEAD_TRY(const Buffer in, device.allocate(4096, Memory::kUpload, "fragments' check"));
  BULKHEAD_TRY(const Buffer out, device.allocate(4096, Memory::kReadback, "fragments' check"));
  constexpr std::uint32_t kB = 512, kC = 1024;  // bytes into `in`
  // No two entries of a matrix are equal, so that none can be mistaken for another.
  for (std::uint32_t i = 0; i < 256; ++i) {
    const std::uint16_t half = half_of(i);
    std::memcpy(in.mapped().data() + i * 2, &half, 2);
  }
  for (std::uint32_t i = 0; i < 128; ++i) {
    const std::uint16_t half = half_of(i);
    const auto value = static_cast<float>(i * 3);
    std::memcpy(in.mapped().data() + kB + i * 2, &half, 2);
    std::memcpy(in.mapped().data() + kC + i * 4, &value, 4);
  }
  std::memset(out.mapped().data(), 0, out.mapped().size());
  const Result<Kernel> kernel = device.make_kernel(
      {"fragments' check", spirv::units_fragments, sizeof(UnitsFragmentsPush), {}, 32});
  if (!kernel.ok()) {
    spdlog::warn("matrix units are not used: {}", kernel.error().message());
    return false;
  }
  BULKHEAD_TRY(const auto ring, CommandRing::create(device, {}, true, 10000));
  const UnitsFragmentsPush push{in.address(), in.address() + kB, in.address() + kC, out.address()};
  BULKHEAD_TRY(const auto id, ring->record([&](Recorder& recorder) {
    recorder.dispatch(*kernel, push_bytes(push), 1);
  }));
  BULKHEAD_TRY(const auto ticket, ring->submit(id));
  BULKHEAD_RETURN_IF_ERROR(ring->wait(ticket));
  for (std::uint32_t row = 0; row < 16; ++row) {
    for (std::uint32_t column = 0; column < 8; ++column) {
      const std::uint32_t at = row * 8 + column;
      std::uint32_t want = at * 3;
      for (std::uint32_t k = 0; k < 16; ++k)
        want += (row * 16 + k) * (k * 8 + column);
      float got = 0;
      std::memcpy(&got, out.mapped().data() + at * 4, 4);
      if (got != static_cast<float>(want)) return false;
    }
  }
  return true;
}

}  // namespace bulkhead::gpu::kernels
