// Handlers for operators: they show workers, models and requests, and control workers and models. Rows of routes.cpp
// name these handlers.
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
// Shows the settings as YAML and hides keys.
HttpResponse get_settings(const ApiContext& context, const std::string&);

// These act on the worker that the path names. They answer 202 at once, with the worker's description at that moment.
void drain_worker(Call call);
Parsed<Worker::Start> parse_restart(std::string_view body);
void restart_worker(Call call, Worker::Start start);
void profile_worker(Call call);
void kill_worker(Call call);

// These take {"model": NAME} and answer 202 at once, with the model's description at that moment. The model's state
// then shows the progress.
void load_model(Call call, std::string name);
void unload_model(Call call, std::string name);

}  // namespace bulkhead::orchestrator
