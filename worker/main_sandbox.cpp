#include "worker/main_sandbox.hpp"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "config/base/log.hpp"
#include "config/draft_file.hpp"
#include "config/template_path.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::worker {
namespace {

BornIn born_in(const std::string& told) {
  BornIn born;
  born.user = told == "own, and a user namespace";
  born.pids = born.user || told == "own";
  if (!born.pids && !told.empty()) born.pid_gap = told;
  return born;
}

// Warns of files that isolation.sandbox_paths or a variable names and that `user`, the user that this process has
// become, may not read. The sandbox allows them, but the files' permissions do not.
void tell_of_unreadable(const std::string& sandbox_paths, std::uint32_t user) {
  for (const std::string& path : asked_paths(sandbox_paths)) {
    if (::faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) == 0 || errno != EACCES) continue;
    spdlog::warn(
        "sandbox: {} may not be read by the worker's own user, {}: let everybody read it, or --set "
        "isolation.worker_user=off",
        path, user);
  }
}

}  // namespace

AskedUser asked_user(const std::string& told) {
  AskedUser user;
  if (told.empty()) return user;
  std::uint32_t id = 0;
  const auto [end, error] = std::from_chars(told.data(), told.data() + told.size(), id);
  if (error == std::errc() && end == told.data() + told.size() && id != 0)
    user.id = id;
  else
    user.gap = told;
  return user;
}

Result<Confined> confine(const ConfinedNeeds& needs, const config::IsolationSettings& isolation) {
  if (isolation.sandbox == config::SandboxMode::kOff)
    return Confined{no_protections("isolation.sandbox is false"), needs.cache, {}};
  SandboxRequest request;
  request.paths.readable = driver_paths(isolation.sandbox_paths);
  for (std::string& file : model::model_files(needs.model))
    request.paths.readable.push_back(std::move(file));
  if (config::is_draft_file(needs.draft)) {
    for (std::string& file : model::model_files(needs.draft))
      request.paths.readable.push_back(std::move(file));
  }
  if (config::is_template_path(needs.chat_template))
    request.paths.readable.push_back(needs.chat_template);
  if (!needs.cache.empty()) request.paths.writable.push_back(needs.cache);
  request.region = needs.region;
  request.more_calls = isolation.sandbox_calls;
  request.namespaces = isolation.namespaces == config::NamespaceMode::kAuto;
  request.born = born_in(needs.pid_namespace);
  request.user = needs.user;
  request.needed = asked_paths({});
  const bool logs = isolation.sandbox == config::SandboxMode::kLog;
  if (logs) request.level = SandboxLevel::kLog;
  for (const std::string& unreadable : unreadable_drivers(request.paths.readable))
    spdlog::warn("sandbox: {}", unreadable);
  BULKHEAD_TRY(SandboxReport report, enter_sandbox(request));
  for (const std::string& gap : report.gaps)
    spdlog::warn("sandbox: {}", gap);
  if (logs) {
    spdlog::warn(
        "isolation.sandbox is log: this process is not confined; what a sandbox would refuse it "
        "follows in lines with \"would refuse\"");
    return Confined{no_protections("isolation.sandbox is log"), needs.cache, {}};
  }
  if (report.user.active)
    tell_of_unreadable(isolation.sandbox_paths, *needs.user.id);
  else
    spdlog::info("sandbox: no user id of its own: {}", report.user.gap);
  if (const std::string& gap = report.namespaces.gap; !gap.empty())
    spdlog::info("sandbox: not all namespaces: {}", gap);
  else if (const std::string& why = report.namespaces.root_gap; !why.empty())
    spdlog::info("sandbox: no private root: {}", why);
  if (const std::string& why = report.namespaces.pid_gap;
      !why.empty() && why != report.namespaces.gap)
    spdlog::info("sandbox: no namespace of process ids: {}", why);
  Confined confined{protections(report), needs.cache, {}};
  if (!report.unreachable.empty()) {
    confined.cache_folder = std::move(report.unreachable.front());
    confined.cache = "/proc/self/fd/" + std::to_string(confined.cache_folder.get());
  }
  return confined;
}

void let_clock_of_files_pass() {
  constexpr int kMostTries = 200;
  timespec now{}, ticked{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  for (int tries = 0; tries < kMostTries; ++tries) {
    ::clock_gettime(CLOCK_REALTIME_COARSE, &ticked);
    if (std::pair(ticked.tv_sec, ticked.tv_nsec) > std::pair(now.tv_sec, now.tv_nsec)) return;
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
}

}  // namespace bulkhead::worker
