// `bulkhead doctor --bundle FILE`: writes one archive that an operator can attach to a report.
//
// The daemon's part comes over its API, which shows no prompt and no text of an answer, and hides keys in the
// settings. The program also removes the key that it was given from every file. If it can't get a part, the part's
// file gives the reason.
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "config/base/utc_time.hpp"
#include "tools/cli/archive.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/table.hpp"

namespace bulkhead::cli {

using nlohmann::json;

namespace {

constexpr const char* kReadme =
    "What `bulkhead doctor --bundle` has gathered. Look through it before you pass it on.\n"
    "\n"
    "versions.txt    programs, kernel, distribution, processors, memory\n"
    "devices.txt     Vulkan drivers and devices, and what the sandbox can do here\n"
    "settings.yaml   what the daemon runs with; keys are hidden\n"
    "health.json, workers.json, models.json, requests.json, metrics.txt   as the daemon is now\n"
    "crashes.json    the last deaths of workers: cause, last words, step, and which requests they "
    "had\n"
    "logs/NAME.txt   what each worker wrote last, and what the daemon's log said of it\n"
    "\n"
    "There are no prompts, no answers and no keys in it. There are the names of files, of models "
    "and of keys.\n";

std::string distribution() {
  std::ifstream file("/etc/os-release");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("PRETTY_NAME=")) return line.substr(12);
  }
  return "unknown";
}

std::string versions() {
  utsname system{};
  ::uname(&system);
  std::string text = "bulkhead      " BULKHEAD_VERSION "\n";
  text += "made          " + utc_text(std::chrono::system_clock::now()) + "\n";
  text += std::string("kernel        ") + system.sysname + " " + system.release + " " +
          system.machine + "\n";
  text += "distribution  " + distribution() + "\n";
  text += "processors    " + std::to_string(std::thread::hardware_concurrency()) + "\n";
  struct sysinfo memory {};
  if (::sysinfo(&memory) == 0) {
    const auto mib = [&memory](std::uint64_t units) {
      return std::to_string((units * memory.mem_unit) >> 20) + " MiB";
    };
    text += "memory        " + mib(memory.totalram) + ", " + mib(memory.freeram) + " free\n";
  }
  return text;
}

std::string devices() {
  Diagnosis found = diagnose();
  if (found.no_devices) found.text += found.no_devices->message() + "\n";
  return found.text;
}

std::string without(std::string text, const std::string& secret) {
  constexpr std::string_view kInstead = "(hidden)";
  if (secret.empty()) return text;
  // The search continues after the replacement, which may contain the secret's letters.
  for (std::size_t at = text.find(secret); at != std::string::npos;
       at = text.find(secret, at + kInstead.size()))
    text.replace(at, secret.size(), kInstead);
  return text;
}

// Collects the files of the archive, with everything that the daemon reports.
class Gathering {
 public:
  Gathering(HttpClient client, std::string secret)
      : client_(std::move(client)), secret_(std::move(secret)) {}

  void add(std::string name, const std::string& content) {
    files_.push_back({std::move(name), without(content, secret_)});
  }

  // Adds the body of the answer; if there is none, the file says why.
  std::string fetch(const std::string& name, const std::string& path) {
    const Result<HttpResponse> response = ask(path);
    const bool had = response.ok() && (response->status == 200 || path == "/health");
    if (had) {
      add(name, response->body);
      return response->body;
    }
    const Error why = response.ok() ? api_error(*response) : response.error();
    miss(name, why.message());
    add(name, "not to be had: " + why.message() + "\n");
    return "";
  }

  // Adds one log for each name in the list of workers.
  void fetch_logs(const json& workers) {
    for (const json& worker : workers) {
      if (!worker.is_object() || !worker.value("name", json()).is_string()) continue;
      const std::string name = worker["name"];
      const Result<HttpResponse> response = ask("/v1/workers/" + url_encoded(name) + "/log");
      const json log = response.ok() ? json::parse(response->body, nullptr, false) : json(nullptr);
      if (!log.is_object() || !log.value("lines", json()).is_array()) {
        miss("the log of " + name, response.ok() ? "it is no log" : response.error().message());
        continue;
      }
      std::string text;
      for (const json& line : log["lines"]) {
        if (!line.is_object()) continue;
        for (const char* part : {"time", "text"}) {
          const json value = line.value(part, json());
          if (value.is_string()) text += value.get<std::string>() + " ";
        }
        text += '\n';
      }
      add("logs/" + file_name(name) + ".txt", text);
    }
  }

  const std::vector<ArchivedFile>& files() const { return files_; }
  // What is not in the archive, a line for each reason.
  std::vector<std::string> missing() const {
    std::vector<std::string> lines;
    for (const auto& [names, why] : missing_)
      lines.push_back(names + ": " + why);
    return lines;
  }

 private:
  // Waits for a daemon that hangs once, and not for each file.
  Result<HttpResponse> ask(const std::string& path) {
    if (hangs_) return *hangs_;
    Result<HttpResponse> response = client_.get(path);
    if (!response.ok() && response.error().code() == ErrorCode::kDeadlineExceeded)
      hangs_ = response.error();
    return response;
  }

  // Names that are missing one after the other for the same reason share a line.
  void miss(const std::string& name, const std::string& why) {
    if (!missing_.empty() && missing_.back().second == why) {
      missing_.back().first += ", " + name;
    } else {
      missing_.emplace_back(name, why);
    }
  }

  static std::string file_name(std::string name) {
    for (char& c : name) {
      if (c == '/' || static_cast<unsigned char>(c) < 0x20) c = '_';
    }
    return name.substr(0, 80);
  }

  HttpClient client_;
  std::optional<Error> hangs_;  // set once the daemon has not answered in time
  std::string secret_;
  std::vector<ArchivedFile> files_;
  std::vector<std::pair<std::string, std::string>> missing_;  // names, and why they are missing
};

}  // namespace

int write_bundle(const DoctorOptions& options) {
  const bool to_stdout = options.bundle == "-";
  if (to_stdout && ::isatty(STDOUT_FILENO) != 0) {
    return fail(Error(ErrorCode::kInvalidArgument,
                      "the archive does not go to a terminal; write `--bundle - > report.tar`, or "
                      "name a file with --bundle"));
  }
  Result<HttpClient> client = make_client(options.connection);
  if (!client.ok()) return fail(client.error());
  Gathering bundle(*client, options.connection.api_key);
  bundle.add("README.txt", kReadme);
  bundle.add("versions.txt", versions());
  bundle.add("devices.txt", devices());
  bundle.fetch("health.json", "/health");
  bundle.fetch("settings.yaml", "/v1/settings");
  bundle.fetch("metrics.txt", "/metrics");
  bundle.fetch("models.json", "/v1/models");
  bundle.fetch("requests.json", "/v1/requests");
  bundle.fetch("crashes.json", "/v1/crashes");
  const json workers = json::parse(bundle.fetch("workers.json", "/v1/workers"), nullptr, false);
  if (workers.is_array()) bundle.fetch_logs(workers);

  const std::string archive =
      tar_archive(bundle.files(), static_cast<std::uint64_t>(std::time(nullptr)));
  if (to_stdout) {
    if (!put(archive)) return 1;
  } else if (const Status written = write_private_file(options.bundle, archive); !written.ok()) {
    return fail(written.error());
  }
  for (const std::string& each : bundle.missing())
    std::fprintf(stderr, "bulkhead: not in the archive: %s\n", cleaned_lines(each).c_str());
  if (!to_stdout) {
    put("wrote " + options.bundle +
        ": no prompts and no keys are in it; look through it before you pass it on\n");
  }
  return 0;
}

}  // namespace bulkhead::cli
