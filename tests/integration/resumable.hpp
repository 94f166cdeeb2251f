// A client of resumable streams: it keeps the complete events that it got, and its position.
#pragma once

#include <string>
#include <vector>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {

struct ResumableClient {
  std::string key;                // the API key; empty: the daemon asks for none
  std::string id;                 // the request's id, from X-Request-Id
  std::vector<std::string> data;  // of each event, without its id line
  std::string rest;               // an incomplete event
  bool complete = false;          // the last connection ended as HTTP requires

  // Adds what came; each event's id must be the next one.
  void take(const std::string& bytes) {
    rest += bytes;
    std::size_t end = 0;
    while ((end = rest.find("\n\n")) != std::string::npos) {
      const std::string event = rest.substr(0, end);
      rest.erase(0, end + 2);
      const std::string wanted = "id: " + std::to_string(data.size()) + "\n";
      ASSERT_TRUE(event.starts_with(wanted)) << wanted << event;
      data.push_back(event.substr(wanted.size()));
    }
  }

  void begin(HttpClient& client, const std::string& path, const json& request) {
    ASSERT_TRUE(client.send("POST", path, request.dump(), fields()));
    HttpReply head = client.receive_head();
    ASSERT_EQ(head.status, 200);
    id = head.headers["x-request-id"];
    ASSERT_FALSE(id.empty());
  }
  void resume(HttpClient& client) {
    rest.clear();
    std::vector<std::string> more = fields();
    if (!data.empty()) more.push_back("Last-Event-ID: " + std::to_string(data.size() - 1));
    ASSERT_TRUE(client.send("GET", "/v1/requests/" + id + "/events", "", more));
    HttpReply head = client.receive_head();
    ASSERT_EQ(head.status, 200);
    ASSERT_EQ(head.headers["x-request-id"], id);
  }
  void read_events(HttpClient& client, std::size_t count) {
    const std::size_t wanted = data.size() + count;
    while (data.size() < wanted) {
      auto chunk = client.receive_chunk();
      ASSERT_TRUE(chunk.has_value() && !chunk->empty()) << data.size();
      take(*chunk);
    }
  }
  void read_to_end(HttpClient& client) {
    complete = false;
    while (auto chunk = client.receive_chunk()) {
      if (chunk->empty()) {
        complete = true;
        return;
      }
      take(*chunk);
    }
  }
  std::vector<std::string> fields() const {
    if (key.empty()) return {};
    return {"Authorization: Bearer " + key};
  }
  // Returns the stream as it would have come over a single connection.
  std::string body() const {
    std::string out;
    for (const std::string& each : data)
      out += each + "\n\n";
    return out;
  }
};

}  // namespace bulkhead::test
