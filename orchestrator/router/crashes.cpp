// Notes workers' deaths for GET /v1/crashes.
#include <algorithm>
#include <utility>

#include "config/base/log.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

void Router::note_crash(const Worker& worker, const Death& death,
                        const std::vector<Orphan>& orphans) {
  if (death.as_asked || death.vault_unusable) return;
  Crash crash;
  crash.time = std::chrono::system_clock::now();
  crash.worker = worker.name();
  crash.model = models_[worker.options().model].id;
  crash.pid = death.pid;
  crash.cause = death.cause;
  crash.words = death.words;
  crash.step = death.step;
  for (const Orphan& orphan : orphans) {
    const auto active = active_.find(orphan.request);
    if (!orphan.sent || active == active_.end()) continue;
    std::string name = active->second.observer->request_name();
    if (name.empty()) name = fmt::format("request {}", orphan.request.value);
    // Each choice of an answer is a request of its own in the router.
    if (std::ranges::count(crash.requests, name) == 0) crash.requests.push_back(std::move(name));
  }
  crashes_.add(std::move(crash));
}

}  // namespace bulkhead::orchestrator
