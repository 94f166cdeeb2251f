// A real model's resumable streams when the daemon dies: each token, text and log-probability must be that of an
// undisturbed stream.

#include "tests/integration/model_serving.hpp"
#include "tests/integration/resumable.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

HttpReply reply_of(const ResumableClient& client) {
  HttpReply reply;
  reply.status = 200;
  reply.headers["content-type"] = "text/event-stream";
  reply.body = client.body();
  return reply;
}

TEST(ResumedModel, StreamIsTheSameAfterTheDaemonWasKilled) {
  const TemporaryFolder temporary("resume");
  const std::string folder = temporary.path();
  for (const char* transport : {"ipc.transport=shm", "ipc.transport=stdio"}) {
    const std::vector<std::string> settings = {transport,
                                               "isolation.journal_path=" + folder + "/journal"};
    Serving serving = serve_model("", settings);
    for (double temperature : {0.0, 1.0}) {
      json request = {{"prompt", "The harbour was"},
                      {"max_tokens", 72},
                      {"temperature", temperature},
                      {"seed", 77},
                      {"logprobs", 3},
                      {"stream", true},
                      {"ignore_eos", true},
                      {"repetition_penalty", 1.1}};
      Answer undisturbed = complete(serving, request);
      request["resumable"] = true;
      request["return_token_ids"] = true;
      request["stream_options"] = {{"include_usage", true}};
      ResumableClient client;
      {
        HttpClient first(serving.port);
        client.begin(first, "/v1/completions", request);
        client.read_events(first, 10);
        serving.daemon->signal(SIGKILL);
        EXPECT_EQ(serving.daemon->wait_for_exit(), -SIGKILL);
        client.read_to_end(first);
      }
      EXPECT_LT(client.data.size(), 72U) << "killed in the middle";
      serving = serve_model("", settings);
      HttpClient second(serving.port);
      client.resume(second);
      client.read_to_end(second);
      Answer resumed = answer_of(reply_of(client));
      EXPECT_EQ(resumed.text, undisturbed.text);
      EXPECT_EQ(resumed.ids, undisturbed.ids);
      EXPECT_EQ(resumed.prompt_ids, undisturbed.prompt_ids);
      EXPECT_EQ(resumed.logprobs, undisturbed.logprobs);
      EXPECT_EQ(resumed.finish_reason, undisturbed.finish_reason);
      EXPECT_EQ(resumed.usage["completion_tokens"], 72);
      EXPECT_EQ(serving.worker()["recovered_requests"], 1);
    }
  }
}

}  // namespace
}  // namespace bulkhead::test
