// The archive of `bulkhead doctor --bundle` contains what a report needs, and no secret.
#include <sys/stat.h>

#include <fstream>
#include <iterator>

#include "tests/integration/tool.hpp"
#include "tests/integration/watching.hpp"

namespace bulkhead::test {
namespace {

class DoctorBundle : public testing::Test {
 protected:
  ~DoctorBundle() override { ::unlink(file_.c_str()); }

  std::string whole() const {
    std::ifstream stream(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  std::string part(const std::string& name) const {
    return run_shell("tar -xOf " + file_ + " " + name).out;
  }

  const std::string file_ = testing::TempDir() + "bundle-" + std::to_string(::getpid()) + ".tar";
};

TEST_F(DoctorBundle, DescribesACrashAndHasNoKeyAndNoPrompt) {
  const Serving serving =
      serve({"server.api_key=operators-secret",
             "server.keys=alice clients-secret tokens_per_minute=100000", "log.level=trace"});
  const auto ask = [&](const std::string& path, const json& body) {
    const HttpReply reply =
        serving.post(path, body.dump(), {"Authorization: Bearer clients-secret"});
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply;
  };
  const HttpReply crashed =
      ask("/v1/completions", {{"prompt", "kill@3 private-words"}, {"max_tokens", 6}});
  ask("/v1/chat/completions",
      {{"messages", {{{"role", "user"}, {"content", "private-words"}}}}, {"max_tokens", 4}});
  const std::string id = crashed.headers.at("x-request-id");

  const Outcome made = tool(serving, "doctor --bundle " + file_ + " --api-key operators-secret");
  EXPECT_EQ(made.code, 0) << made.out;
  EXPECT_EQ(made.out.find("not in the archive"), std::string::npos) << made.out;
  struct stat status {};
  ASSERT_EQ(::stat(file_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);

  const json crashes = json::parse(part("crashes.json"));
  ASSERT_EQ(crashes.size(), 1U) << crashes;
  EXPECT_EQ(crashes[0]["worker"], "builtin-0");
  EXPECT_EQ(crashes[0]["cause"], "signal");
  EXPECT_NE(crashes[0]["words"].get<std::string>().find("SIGKILL"), std::string::npos);
  EXPECT_EQ(crashes[0]["requests"], json{id});
  EXPECT_GE(crashes[0]["step"], 3);
  EXPECT_NE(part("logs/builtin-0.txt").find("died: "), std::string::npos);
  EXPECT_NE(part("settings.yaml").find("keys: [\"alice (hidden) tokens_per_minute=100000\"]"),
            std::string::npos)
      << part("settings.yaml");
  EXPECT_NE(part("metrics.txt").find("bulkhead_key_requests_total{key=\"alice\"} 2"),
            std::string::npos);
  EXPECT_EQ(json::parse(part("workers.json"))[0]["restarts"], 1);
  EXPECT_NE(part("versions.txt").find("kernel"), std::string::npos);
  EXPECT_NE(part("devices.txt").find("Vulkan drivers"), std::string::npos);

  for (const char* forbidden : {"operators-secret", "clients-secret", "private-words", " t1"})
    EXPECT_EQ(whole().find(forbidden), std::string::npos) << forbidden;
}

// The bundle does not contain the key, even if the key got into a log.
TEST_F(DoctorBundle, TakesItsOwnKeyOutOfWhateverHasIt) {
  const Serving serving =
      serve({"server.api_key=title"});  // the scripted worker's log has this word
  EXPECT_EQ(serving
                .post("/v1/completions", R"({"prompt":"scribble","max_tokens":2})",
                      {"Authorization: Bearer title"})
                .status,
            200);
  EXPECT_TRUE(Serving::eventually([&] {
    return HttpClient(serving.port)
               .request("GET", "/v1/workers/builtin-0/log", "", {"Authorization: Bearer title"})
               .body.find("title") != std::string::npos;
  }));
  EXPECT_EQ(tool(serving, "doctor --bundle " + file_ + " --api-key title").code, 0);
  EXPECT_NE(part("logs/builtin-0.txt").find("(hidden)"), std::string::npos);
  EXPECT_EQ(whole().find("title"), std::string::npos);
}

TEST_F(DoctorBundle, IsMadeWithoutADaemon) {
  const Outcome made =
      run_shell(BULKHEAD_TOOL " doctor --url http://127.0.0.1:1 --bundle " + file_);
  EXPECT_EQ(made.code, 0) << made.out;
  EXPECT_NE(made.out.find("not in the archive: health.json, settings.yaml, "), std::string::npos)
      << made.out;
  EXPECT_NE(part("versions.txt").find("bulkhead"), std::string::npos);
  EXPECT_EQ(run_shell(BULKHEAD_TOOL " doctor --bundle /no/such/folder/x.tar").code, 1);
}

}  // namespace
}  // namespace bulkhead::test
