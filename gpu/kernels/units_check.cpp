#include "gpu/kernels/units_check.hpp"

#include <cstring>
#include <vector>

#include "gpu/command_ring.hpp"
#include "gpu/kernels/units_fragments.hpp"

namespace bulkhead::gpu::kernels {
namespace {

struct CheckPush {
  std::uint64_t a, b, c, out;
};

// Half of an integer below 2048.
std::uint16_t half_of(std::uint32_t value) {
  if (value == 0) return 0;
  std::uint32_t exponent = 0;
  while ((value >> exponent) > 1)
    ++exponent;
  return static_cast<std::uint16_t>(((exponent + 15) << 10) | ((value << (10 - exponent)) & 1023U));
}

}  // namespace

Result<std::vector<float>> read_fragments(Device& device) {
  BULKHEAD_TRY(const Buffer in, device.allocate(4096, Memory::kUpload, "fragments' check"));
  BULKHEAD_TRY(const Buffer out, device.allocate(4096, Memory::kReadback, "fragments' check"));
  constexpr std::uint32_t kB = 512, kC = 1024;  // bytes into `in`
  for (std::uint32_t i = 0; i < 256; ++i) {
    const std::uint16_t half = half_of(i);
    std::memcpy(in.mapped().data() + i * 2, &half, 2);
  }
  for (std::uint32_t i = 0; i < 128; ++i) {
    const std::uint16_t half = half_of(i);
    const auto value = static_cast<float>(i);
    std::memcpy(in.mapped().data() + kB + i * 2, &half, 2);
    std::memcpy(in.mapped().data() + kC + i * 4, &value, 4);
  }
  BULKHEAD_TRY(
      const Kernel kernel,
      device.make_kernel({"fragments' check", spirv::units_fragments, sizeof(CheckPush), {}, 32}));
  BULKHEAD_TRY(const auto ring, CommandRing::create(device, {}, true, 10000));
  const CheckPush push{in.address(), in.address() + kB, in.address() + kC, out.address()};
  BULKHEAD_TRY(const auto id, ring->record([&](Recorder& recorder) {
    recorder.dispatch(kernel, push_bytes(push), 1);
  }));
  BULKHEAD_TRY(const auto ticket, ring->submit(id));
  BULKHEAD_RETURN_IF_ERROR(ring->wait(ticket));
  std::vector<float> values(32 * 20);
  std::memcpy(values.data(), out.mapped().data(), values.size() * sizeof(float));
  return values;
}

Result<bool> fragments_as_expected(Device& device) {
  if (!device.info().matrix_units || device.info().min_subgroup_size > 32 ||
      device.info().max_subgroup_size < 32) {
    return false;
  }
  BULKHEAD_TRY(const std::vector<float> values, read_fragments(device));
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const float* const got = values.data() + lane * 20;
    const std::uint32_t row = lane / 4, pair = lane % 4 * 2;
    for (std::uint32_t e = 0; e < 8; ++e) {
      const std::uint32_t a_row = row + (e & 4) * 2, a_column = pair + (e & 1) + (e & 2) * 4;
      if (got[e] != static_cast<float>(a_row * 16 + a_column)) return false;
    }
    for (std::uint32_t e = 0; e < 4; ++e) {
      const std::uint32_t c_row = row + (e & 2) * 4,
                          c_column = pair + (e & 1);  // b's and the sums'
      std::uint32_t product = 0;
      for (std::uint32_t k = 0; k < 16; ++k)
        product += (c_row * 16 + k) * (k * 8 + c_column);
      if (got[8 + e] != static_cast<float>(c_row * 8 + c_column)) return false;
      if (got[12 + e] != static_cast<float>(c_row * 8 + c_column)) return false;
      if (got[16 + e] != static_cast<float>(product)) return false;
    }
  }
  return true;
}

}  // namespace bulkhead::gpu::kernels
