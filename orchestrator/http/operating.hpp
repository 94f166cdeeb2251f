// What operators ask: workers, models and requests as they are, and what is to become of them. Handlers of
// rows of routes.cpp.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "orchestrator/http/routes.hpp"

namespace bulkhead::orchestrator {

HttpResponse json_response(int status, const nlohmann::json& body);

HttpResponse get_workers(const ApiContext& context, const std::string&);
HttpResponse get_worker_log(const ApiContext& context, const std::string& name);
HttpResponse get_requests(const ApiContext& context, const std::string&);
HttpResponse get_crashes(const ApiContext& context, const std::string&);
// As YAML, with keys hidden.
HttpResponse get_settings(const ApiContext& context, const std::string&);

// Of the worker that the path names. 202 at once, with the worker as it is then.
void drain_worker(Call call);
void restart_worker(Call call);
void profile_worker(Call call);
void kill_worker(Call call);

// {"model": NAME}. 202 at once, with the model as it is then; its state tells how far it is.
void load_model(Call call);
void unload_model(Call call);

}  // namespace bulkhead::orchestrator
