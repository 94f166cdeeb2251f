// The machine's figures, read from folders that look like the kernel's.
#include "orchestrator/metrics/host_figures.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "orchestrator/metrics/metric_name.hpp"

namespace bulkhead::orchestrator {
namespace {

namespace fs = std::filesystem;

class HostFigures : public testing::Test {
 protected:
  HostFigures() { fs::create_directories(root_); }
  ~HostFigures() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  // Returns the value of "NAME{LABEL,LABEL}"; -1 if there is no such figure.
  static double value(const std::vector<DaemonFigure>& figures, const std::string& which) {
    for (const DaemonFigure& each : figures) {
      std::string labels = each.label_value;
      if (!each.more_label.empty()) labels += "," + each.more_label_value;
      if (which == std::string(each.name) + "{" + labels + "}") return each.value;
    }
    return -1;
  }

  const std::string root_ = "/tmp/bulkhead-host-figures-" + std::to_string(::getpid());
};

TEST_F(HostFigures, HaveMemoryAndPressure) {
  write("/proc/pressure/memory",
        "some avg10=1.00 avg60=0.00 avg300=0.00 total=2500000\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n");
  write("/proc/meminfo", "MemTotal:  2048 kB\nMemFree: 3 kB\nMemAvailable:  1024 kB\n");
  const auto figures = look_at_host(root_);
  EXPECT_EQ(value(figures, "bulkhead_host_memory_pressure_seconds_total{some}"), 2.5);
  EXPECT_EQ(value(figures, "bulkhead_host_memory_pressure_seconds_total{full}"), 0.5);
  EXPECT_EQ(value(figures, "bulkhead_host_memory_bytes{}"), 2048 * 1024);
  EXPECT_EQ(value(figures, "bulkhead_host_memory_available_bytes{}"), 1024 * 1024);
}

TEST_F(HostFigures, HaveWhatAnAmdDeviceShows) {
  const std::string device = "/sys/devices/pci0000:00/0000:03:00.0";
  write(device + "/hwmon/hwmon4/temp1_input", "61000\n");
  write(device + "/hwmon/hwmon4/temp1_label", "edge\n");
  write(device + "/hwmon/hwmon4/temp2_input", "70500\n");
  write(device + "/mem_info_vram_used", "1000\n");
  write(device + "/mem_info_vram_total", "4000\n");
  fs::create_directories(root_ + "/sys/class/drm/card0");
  fs::create_directories(root_ + "/sys/class/drm/card0-DP-1");
  fs::create_directory_symlink(root_ + device, root_ + "/sys/class/drm/card0/device");
  const auto figures = look_at_host(root_);
  EXPECT_EQ(value(figures, "bulkhead_device_temperature_celsius{0000:03:00.0,edge}"), 61);
  EXPECT_EQ(value(figures, "bulkhead_device_temperature_celsius{0000:03:00.0,temp2}"), 70.5);
  EXPECT_EQ(value(figures, "bulkhead_device_memory_used_bytes{0000:03:00.0}"), 1000);
  EXPECT_EQ(value(figures, "bulkhead_device_memory_bytes{0000:03:00.0}"), 4000);
  EXPECT_EQ(value(figures, "bulkhead_device_throttled{0000:03:00.0}"), -1) << "AMD's does not say";
}

TEST_F(HostFigures, SayWhetherAnIntelDeviceIsThrottled) {
  write("/sys/class/drm/card0/gt/gt0/throttle_reason_status", "0\n");
  write("/sys/class/drm/card0/gt/gt1/throttle_reason_status", "1\n");
  const std::string device = "/sys/devices/0000:00:02.0";
  write(device + "/tile0/gt0/freq0/throttle/status", "0\n");
  fs::create_directories(root_ + "/sys/class/drm/card1");
  fs::create_directory_symlink(root_ + device, root_ + "/sys/class/drm/card1/device");
  const auto figures = look_at_host(root_);
  EXPECT_EQ(value(figures, "bulkhead_device_throttled{card0}"), 1) << "i915, of either part";
  EXPECT_EQ(value(figures, "bulkhead_device_throttled{0000:00:02.0}"), 0) << "xe";
}

TEST_F(HostFigures, AreNoneOnASystemThatReportsNothing) {
  EXPECT_TRUE(look_at_host(root_).empty());
  EXPECT_TRUE(XidCounter(root_).read_on().empty());
  HostWatch watch(root_);
  EXPECT_TRUE(watch.figures().empty());
}

TEST_F(HostFigures, CountXidErrorsOfTheKernelAlone) {
  XidCounter xids(root_);
  const std::string lost = "NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.";
  xids.take("6,1,2,-;" + lost + "\n");
  xids.take("4,2,3,-;" + lost + "\n SUBSYSTEM=pci\n");
  xids.take("6,3,4,-;NVRM: Xid (PCI:0000:02:00): 13, Graphics Exception\n");
  xids.take("14,4,5,-;" + lost + "\n");  // a program wrote this
  for (const char* line : {"", "6,1,2,-;NVRM: Xid (PCI:0000:01:00)", "6,1,2,-;NVRM: Xid (PCI:x): ,",
                           "6,1,2,-;NVRM: Xid (PCI:x): 123456, ", "6;a: NVRM: Xid (PCI:x): 1, "})
    xids.take(line);
  const auto figures = xids.read_on();
  EXPECT_EQ(figures.size(), 2U);
  EXPECT_EQ(value(figures, "bulkhead_device_xid_errors_total{0000:01:00,79}"), 2);
  EXPECT_EQ(value(figures, "bulkhead_device_xid_errors_total{0000:02:00,13}"), 1);
}

TEST_F(HostFigures, AreReadAgainOnceTheyAreOld) {
  write("/proc/meminfo", "MemTotal: 1 kB\n");
  HostWatch watch(root_);
  EXPECT_EQ(value(watch.figures(), "bulkhead_host_memory_bytes{}"), 1024);
  write("/proc/meminfo", "MemTotal: 2 kB\n");
  for (int i = 0; i < 600 && value(watch.figures(), "bulkhead_host_memory_bytes{}") == 1024; ++i)
    ::usleep(50'000);
  EXPECT_EQ(value(watch.figures(), "bulkhead_host_memory_bytes{}"), 2048);
}

TEST(MetricNames, AreInSecondsAndEndAsCountersDo) {
  EXPECT_EQ(metric_name("ring_wait_microseconds", true).name,
            "bulkhead_worker_ring_wait_seconds_total");
  EXPECT_EQ(metric_name("ring_wait_microseconds", true).scale, 1e-6);
  EXPECT_EQ(metric_name("pool_hits", true).name, "bulkhead_worker_pool_hits_total");
  EXPECT_EQ(metric_name("preemptions_total", true).name, "bulkhead_worker_preemptions_total");
  EXPECT_EQ(metric_name("pool_hit_rate", false).name, "bulkhead_worker_pool_hit_rate");
  EXPECT_EQ(metric_name("pool_hit_rate", false).scale, 1);
}

}  // namespace
}  // namespace bulkhead::orchestrator
