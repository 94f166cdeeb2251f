// The numerics id depends on every kernel. The build makes the list of modules, so no module can be
// missing from it.
#include <algorithm>
#include <vector>

#include <gmock/gmock.h>

#include "gpu/kernels/kernels.hpp"
#include "gpu/kernels/rms_norm.hpp"
#include "gpu/kernels/shader_modules.hpp"
#include "tests/support/sample.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;
using gpu::spirv::Module;

std::vector<Module> all() {
  const auto modules = gpu::spirv::modules();
  return {modules.begin(), modules.end()};
}

TEST(CodeHash, IsOfAllModules) {
  EXPECT_EQ(k::code_hash(), k::hash_of(all()));
  EXPECT_GT(all().size(), 20U);
  const auto is_checksum = [](const Module& module) { return module.name == "memory_checksum"; };
  EXPECT_TRUE(std::ranges::any_of(gpu::spirv::modules(), is_checksum));
}

TEST(CodeHash, ChangesWithAnyModule) {
  for (std::size_t i = 0; i < all().size(); i += test::kStride) {
    std::vector<Module> changed = all();
    std::vector<std::uint32_t> words(changed[i].words.begin(), changed[i].words.end());
    words.back() ^= 1;
    changed[i].words = words;
    EXPECT_NE(k::hash_of(changed), k::code_hash()) << changed[i].name;
    changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_NE(k::hash_of(changed), k::code_hash());
  }
  std::vector<Module> more = all();
  more.push_back({"another", more.front().words});
  EXPECT_NE(k::hash_of(more), k::code_hash());
}

TEST(Chained, IsTheModuleOfThatNameOrNoLink) {
  gpu::KernelSpec norm;
  norm.spirv = gpu::spirv::rms_norm;
  norm.push_bytes = 64;
  const gpu::KernelSpec link = k::chained(norm);
  EXPECT_EQ(link.push_bytes, 64 + sizeof(k::ChainPush));
  EXPECT_NE(link.spirv.data(), norm.spirv.data());
  EXPECT_EQ(k::chained(link).push_bytes, 0U);
}

}  // namespace
}  // namespace bulkhead::forward
