// `bulkhead doctor`: shows which Vulkan devices there are, what they can do, and what keeps them from serving.
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "config/base/control_group.hpp"
#include "gpu/device.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/model_fit.hpp"
#include "worker/sandbox/sandbox.hpp"

namespace bulkhead::cli {

using nlohmann::json;

namespace {

std::string in_mib(std::uint64_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

// Returns the files that tell Vulkan's loader which drivers there are.
std::vector<std::string> driver_manifests() {
  std::set<std::string> found;
  for (const char* folder :
       {"/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"}) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      if (entry.path().extension() == ".json") found.insert(entry.path().string());
    }
  }
  return {found.begin(), found.end()};
}

std::string drivers_and_files() {
  std::string out;
  const std::vector<std::string> manifests = driver_manifests();
  out += "Vulkan drivers installed\n";
  for (const std::string& manifest : manifests)
    out += "  " + manifest + "\n";
  if (manifests.empty()) out += "  none found\n";
  std::error_code ignored;
  const bool nvidia = std::filesystem::exists("/dev/nvidiactl", ignored);
  const bool render_node = std::filesystem::exists("/dev/dri", ignored);
  if (!nvidia && !render_node) return out;
  out += "GPU device files\n";
  if (nvidia) out += "  /dev/nvidiactl\n";
  for (const auto& entry : std::filesystem::directory_iterator("/dev/dri", ignored)) {
    const std::string path = entry.path().string();
    if (path.find("renderD") == std::string::npos) continue;
    out += "  " + path;
    if (::access(path.c_str(), R_OK | W_OK) != 0)
      out += "  (not yours to open: add this user to the group `render`)";
    out += "\n";
  }
  return out;
}

// A daemon in the same control group as this process gets the same result.
worker::Protection control_group_of_workers() {
  const Result<DelegatedGroup> group = delegated_group();
  if (!group.ok())
    return {"cgroup", false,
            group.error().message() + "; the service's group may differ: /v1/workers"};
  const char* controllers = !group->pids ? "memory" : !group->memory ? "pids" : "memory and pids";
  return {"cgroup", true,
          std::string(controllers) + ", delegated to this process in " + group->folder};
}

std::string sandbox_of_workers() {
  std::string out;
  const worker::SandboxReport sandbox = worker::sandbox_support();
  std::vector<worker::Protection> protections = worker::protections(sandbox);
  protections.push_back(control_group_of_workers());
  out += "Workers' sandbox\n";
  for (const worker::Protection& each : protections) {
    std::string name = "  " + each.name;
    name.resize(std::max<std::size_t>(name.size() + 1, 20), ' ');
    out += name + (each.active ? "" : "no: ") + each.detail + "\n";
  }
  for (const std::string& gap : sandbox.gaps)
    out += "  " + gap + "\n";
  return out;
}

std::string text_of(const gpu::DeviceInfo& device) {
  std::string out = "Device " + std::to_string(device.index) + ": " + device.name + " (" +
                    gpu::to_string(device.kind) + ")\n";
  out += "  driver            " + device.driver + ", Vulkan " + device.api_version + "\n";
  out += "  memory            " + in_mib(device.device_memory_bytes) + ", about " +
         in_mib(device.free_memory_bytes) + " free\n";
  out += "  subgroups of      " + std::to_string(device.subgroup_size) + ", workgroups up to " +
         std::to_string(device.max_workgroup_invocations) + ", shared memory " +
         std::to_string(device.shared_memory_bytes >> 10) + " KiB\n";
  out +=
      std::string("  copies            ") +
      (device.has_transfer_queue ? "on a transfer queue of its own" : "share the compute queue") +
      "\n";
  if (device.missing.empty()) {
    return out + "  usable            yes: bulkheadd --model FILE --set models.0.device=" +
           std::to_string(device.index) + "\n";
  }
  out += "  usable            no; it lacks:\n";
  for (const std::string& lack : device.missing)
    out += "    " + lack + "\n";
  return out;
}

int tell_fit(const std::string& file) {
  const auto devices = gpu::list_devices();
  if (!devices.ok()) return fail(devices.error());
  const Result<ModelFit> fit = model_fit(file, *devices);
  if (!fit.ok()) return fail(fit.error());
  put("\n" + fit->text);
  return fit->fits ? 0 : 1;
}

json json_of(const gpu::DeviceInfo& device) {
  return {{"index", device.index},
          {"name", device.name},
          {"kind", gpu::to_string(device.kind)},
          {"driver", device.driver},
          {"vulkan", device.api_version},
          {"memory_bytes", device.device_memory_bytes},
          {"free_memory_bytes", device.free_memory_bytes},
          {"subgroup_size", device.subgroup_size},
          {"transfer_queue", device.has_transfer_queue},
          {"usable", device.missing.empty()},
          {"missing", device.missing}};
}

// Prints the diagnosis as JSON for programs.
int put_diagnosis(const DoctorOptions& options) {
  json out = {{"drivers", driver_manifests()}, {"devices", json::array()}, {"usable", false}};
  const worker::SandboxReport sandbox = worker::sandbox_support();
  std::vector<worker::Protection> protections = worker::protections(sandbox);
  protections.push_back(control_group_of_workers());
  for (const worker::Protection& each : protections) {
    out["protections"].push_back(
        {{"name", each.name}, {"active", each.active}, {"detail", each.detail}});
  }
  const auto devices = gpu::list_devices();
  if (!devices.ok()) {
    out["error"] = devices.error().message();
    put_json(out);
    return 1;
  }
  bool good = false;
  for (const gpu::DeviceInfo& device : *devices) {
    out["devices"].push_back(json_of(device));
    good |= device.missing.empty();
  }
  out["usable"] = good;
  if (!options.model.empty() && good) {
    const Result<ModelFit> fit = model_fit(options.model, *devices);
    if (!fit.ok()) return fail(fit.error());
    out["model"] = {{"file", options.model}, {"fits", fit->fits}, {"text", fit->text}};
    good = fit->fits;
  }
  return put_json(out) && good ? 0 : 1;
}

}  // namespace

Diagnosis diagnose() {
  Diagnosis found;
  found.text = drivers_and_files() + sandbox_of_workers() + "\n";
  const auto devices = gpu::list_devices();
  if (!devices.ok()) {
    found.no_devices = devices.error();
    return found;
  }
  for (const gpu::DeviceInfo& device : *devices) {
    found.text += text_of(device);
    found.usable |= device.missing.empty();
  }
  if (!found.usable)
    found.text +=
        "\nNo device can serve. A software device comes with: apt-get install "
        "mesa-vulkan-drivers\n";
  return found;
}

int run_doctor(const DoctorOptions& options) {
  if (!options.bundle.empty()) return write_bundle(options);
  if (options.json) return put_diagnosis(options);
  const Diagnosis found = diagnose();
  put(found.text);
  if (found.no_devices) {
    fail(*found.no_devices);
    std::fprintf(stderr,
                 "For a software device: apt-get install mesa-vulkan-drivers. For a GPU: its "
                 "vendor's driver.\n");
  }
  if (options.model.empty() || !found.usable) return found.usable ? 0 : 1;
  return tell_fit(options.model);
}

}  // namespace bulkhead::cli
