// Describes workers, models and the daemon's health as JSON, for the API. Changes nothing.
#pragma once

#include <functional>

#include <nlohmann/json.hpp>

#include "orchestrator/http/answer.hpp"
#include "orchestrator/journal/disk_journal.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

// `disk` is null if there is no journal on disk.
nlohmann::json describe_worker(const Router& router, const Worker& worker, const DiskJournal* disk);
// Describes a spare of `worker`: the fields of a worker that a spare has, and `standby_of`.
nlohmann::json describe_spare(const Router& router, const Worker& worker, const Spare& spare);
// Calls `use` with the description of each worker, then of each spare. Use one before the next one comes: to hold those
// of a thousand workers together took twice as long, because no cache of the processor holds them.
void describe_workers(const Router& router, const DiskJournal* disk,
                      const std::function<void(nlohmann::json)>& use);
nlohmann::json describe_model(const Router& router, const ModelInfo& model);
// Describes an answer in progress: its request, the workers that have it, and its progress. The answer's text is left
// out.
nlohmann::json describe_answer(const Router& router, const Answer& answer);
// Returns whether the daemon is ready, and if not, why.
nlohmann::json describe_health(const Router& router);

// Describes the last deaths of workers, the oldest first.
nlohmann::json describe_crashes(const Router& router);

}  // namespace bulkhead::orchestrator
