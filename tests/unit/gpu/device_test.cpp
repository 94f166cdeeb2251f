// The device: how it is chosen, its memory, its kernels and its files on disk.
#include "gpu/device.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "gpu/pipeline_cache.hpp"
#include "tests/unit/gpu/gpu_fixture.hpp"

namespace bulkhead::gpu {
namespace {

TEST(Devices, ListNamesACpuDeviceThatIsUsable) {
  const auto devices = list_devices();
  if (!devices.ok()) GTEST_SKIP() << devices.error().message();
  const auto cpu = std::find_if(devices->begin(), devices->end(), [](const DeviceInfo& info) {
    return info.kind == DeviceKind::kCpu;
  });
  if (cpu == devices->end()) GTEST_SKIP() << "no CPU Vulkan device (install mesa-vulkan-drivers)";
  EXPECT_TRUE(cpu->missing.empty()) << cpu->missing.front();
  EXPECT_GT(cpu->subgroup_size, 0u);
  EXPECT_GT(cpu->free_memory_bytes, 0u);
  EXPECT_LE(cpu->free_memory_bytes, cpu->device_memory_bytes);
  EXPECT_EQ(cpu->uuid.size(), 32u);
}

TEST(Devices, UnknownSelectorIsRefusedWithTheListOfDevices) {
  if (const auto devices = list_devices(); !devices.ok()) GTEST_SKIP() << devices.error().message();
  for (const std::string selector : {"no-such-gpu", "4711"}) {
    DeviceOptions options;
    options.selector = selector;
    const auto device = Device::open(options);
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.error().code(), ErrorCode::kNotFound);
    EXPECT_NE(device.error().message().find(selector), std::string::npos)
        << device.error().message();
    EXPECT_NE(device.error().message().find("0: "), std::string::npos) << device.error().message();
  }
}

TEST(Devices, PartOfANameInAnyCaseSelects) {
  const auto devices = list_devices();
  if (!devices.ok()) GTEST_SKIP() << devices.error().message();
  DeviceOptions options;
  options.selector = devices->front().name.substr(1, 5);
  for (char& c : options.selector)
    c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const auto device = Device::open(options);
  ASSERT_TRUE(device.ok()) << device.error().message();
}

class DeviceTest : public GpuTest {
 protected:
  static void run(const std::function<void(Recorder&)>& build) {
    const auto ring = *CommandRing::create(device(), {}, true, kTimeoutMs);
    const auto id = *ring->record(build);
    const Status waited = ring->wait(*ring->submit(id));
    ASSERT_TRUE(waited.ok()) << waited.error().message();
  }
  static void fill(const Buffer& buffer, std::uint32_t word) {
    run([&](Recorder& recorder) { recorder.fill(slice(buffer), word); });
  }
  static std::uint32_t first_word(const Buffer& buffer) {
    const Buffer host = *device().allocate(256, Memory::kReadback, "host");
    run([&](Recorder& recorder) { recorder.copy(slice(buffer, 0, 256), slice(host)); });
    std::uint32_t word = 0;
    std::memcpy(&word, host.mapped().data(), sizeof word);
    return word;
  }
};

TEST_F(DeviceTest, HostVisibleBuffersAreMappedAndOthersAreNot) {
  const auto upload = device().allocate(1000, Memory::kUpload, "upload");
  const auto local = device().allocate(1000, Memory::kDeviceLocal, "local");
  ASSERT_TRUE(upload.ok() && local.ok());
  EXPECT_EQ(upload->mapped().size(), 1000u);
  EXPECT_TRUE(local->mapped().empty());
  EXPECT_NE(local->address(), 0u);
  const BufferSlice part = slice(*upload, 256, 100);
  EXPECT_EQ(part.address, upload->address() + 256);
  EXPECT_EQ(part.mapped, upload->mapped().data() + 256);
}

TEST_F(DeviceTest, AnAllocationPastTheLimitsSaysWhichLimit) {
  const auto too_big =
      device().allocate(device().info().max_allocation_bytes + 1, Memory::kDeviceLocal, "weights");
  ASSERT_FALSE(too_big.ok());
  EXPECT_EQ(too_big.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(too_big.error().message().find("split it"), std::string::npos)
      << too_big.error().message();
  EXPECT_FALSE(device().allocate(0, Memory::kDeviceLocal, "nothing").ok());
}

// ---- memory that another process can have ----

TEST_F(DeviceTest, ExportedMemoryIsTheSameMemoryWhereItIsImported) {
  if (!device().info().shares_memory) GTEST_SKIP() << "this device shares no memory";
  constexpr std::uint64_t kBytes = 1 << 20;
  auto fd = UniqueFd();
  {
    auto buffer = device().allocate(kBytes, Memory::kShared, "shared");
    ASSERT_TRUE(buffer.ok()) << buffer.error().message();
    fill(*buffer, 0x12345678);
    auto exported = device().export_memory(*buffer);
    ASSERT_TRUE(exported.ok()) << exported.error().message();
    fd = *std::move(exported);
  }  // the allocation has been freed, but not its memory
  UniqueFd again(::dup(fd.get()));
  auto first = device().import_memory(std::move(fd), kBytes, "first");
  ASSERT_TRUE(first.ok()) << first.error().message();
  EXPECT_EQ(first_word(*first), 0x12345678U);
  auto second = device().import_memory(std::move(again), kBytes, "second");
  ASSERT_TRUE(second.ok()) << second.error().message();
  fill(*second, 42);
  EXPECT_EQ(first_word(*first), 42U);
}

TEST_F(DeviceTest, WhatCanNotBeImportedIsRefused) {
  if (!device().info().shares_memory) GTEST_SKIP() << "this device shares no memory";
  EXPECT_FALSE(device().import_memory(UniqueFd(), 4096, "nothing").ok());
  UniqueFd small(::memfd_create("small", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(small.get(), 100), 0);
  const auto refused = device().import_memory(std::move(small), 4096, "small");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kCorrupt);
}

TEST_F(DeviceTest, EqualSpecsGiveOnePipelineAndOtherConstantsAnother) {
  const auto first = device().make_kernel(axpb_spec());
  const auto again = device().make_kernel(axpb_spec());
  KernelSpec other = axpb_spec();
  other.constants = {32};
  const auto different = device().make_kernel(other);
  ASSERT_TRUE(first.ok() && again.ok() && different.ok());
  EXPECT_EQ(first->pipeline, again->pipeline);
  EXPECT_NE(first->pipeline, different->pipeline);
  EXPECT_STREQ(first->name, "axpb");
}

TEST_F(DeviceTest, ImpossibleKernelsAreRefused) {
  KernelSpec spec = axpb_spec();
  spec.push_bytes = 132;
  EXPECT_EQ(device().make_kernel(spec).error().code(), ErrorCode::kInvalidArgument);
  spec = axpb_spec();
  spec.required_subgroup_size = device().info().max_subgroup_size * 2;
  const Error refused = device().make_kernel(spec).error();
  EXPECT_EQ(refused.code(), ErrorCode::kUnsupported);
  for (const char* words : {"runs in subgroups of", "has subgroups of", "models[].device"})
    EXPECT_NE(refused.message().find(words), std::string::npos) << refused.message();
}

class PipelineCacheFile : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto device = Device::open(test_device_options()); !device.ok()) {
      GTEST_SKIP() << device.error().message();
    }
    std::string pattern = ::testing::TempDir() + "bulkhead-cache-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  // Opens a device with the folder, makes a kernel, saves, and returns the cache file's path.
  std::string open_and_save() {
    DeviceOptions options = test_device_options();
    options.cache_folder = folder_;
    auto device = Device::open(options);
    if (!device.ok()) {
      ADD_FAILURE() << device.error().message();
      return "";
    }
    const auto kernel = (*device)->make_kernel(axpb_spec());
    EXPECT_TRUE(kernel.ok());
    const Status saved = (*device)->save_pipeline_cache();
    EXPECT_TRUE(saved.ok());
    EXPECT_EQ((*device)->validation_errors(), 0u);
    return pipeline_cache_path(folder_, (*device)->info());
  }

  std::string folder_;
};

TEST_F(PipelineCacheFile, IsWrittenForTheOwnerAloneAndReadBack) {
  const std::string path = open_and_save();
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_FALSE(read_pipeline_cache(path).empty());
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (!entry.is_regular_file()) continue;
    EXPECT_EQ(entry.path().string(), path) << "a temporary file was left";
  }
}

// Otherwise one kernel that Mesa 25 caches late costs a successor others that are in the same file.
TEST_F(PipelineCacheFile, MesasOwnCacheHasAFileForEachKernel) {
  open_and_save();
  EXPECT_STREQ(std::getenv("MESA_DISK_CACHE_MULTI_FILE"), "1");
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(folder_) / "mesa_shader_cache_db"));
}

TEST_F(PipelineCacheFile, CorruptOnesAreIgnored) {
  const std::string path = open_and_save();
  // A driver may write any amount each time.
  const auto spoil = [&](std::uint64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const char old = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(~old));
  };
  constexpr std::uint64_t kLast = ~std::uint64_t{0};
  for (const std::uint64_t offset :
       {std::uint64_t{0}, std::uint64_t{8}, std::uint64_t{16}, kLast}) {
    std::filesystem::remove(path);
    ASSERT_EQ(open_and_save(), path);
    spoil(std::min<std::uint64_t>(offset, std::filesystem::file_size(path) - 1));
    EXPECT_TRUE(read_pipeline_cache(path).empty()) << "byte " << offset;
  }
  EXPECT_EQ(open_and_save(), path);  // the device opens nevertheless, and repairs the file
  EXPECT_FALSE(read_pipeline_cache(path).empty());
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{10}, kLast}) {
    const std::uint64_t size = std::min<std::uint64_t>(bytes, std::filesystem::file_size(path) - 1);
    std::filesystem::resize_file(path, size);
    EXPECT_TRUE(read_pipeline_cache(path).empty()) << size << " bytes";
    EXPECT_EQ(open_and_save(), path);
  }
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(read_pipeline_cache(path).empty()) << "a pipe that nobody writes to";
  EXPECT_EQ(open_and_save(), path);
  EXPECT_FALSE(read_pipeline_cache(path).empty());
}

}  // namespace
}  // namespace bulkhead::gpu
