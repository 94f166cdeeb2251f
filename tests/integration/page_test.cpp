// How the web page is served, and the one action that only the page asks for: to kill a worker.
// tests/integration/web_page tries the page itself, in a browser.
#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

TEST(WebPage, IsServedWithoutTheKeyAndRunsNothingButItsFiles) {
  Serving serving = serve({"server.api_key=secret"});
  const HttpReply page = serving.get("/");
  ASSERT_EQ(page.status, 200) << page.body;
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.headers.at("x-content-type-options"), "nosniff");
  const std::string policy = page.headers.at("content-security-policy");
  for (const char* rule : {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"})
    EXPECT_NE(policy.find(rule), std::string::npos) << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
  // Each file that the page names exists, and none is on another host.
  std::size_t files = 0;
  for (const char* attribute : {"src=\"", "href=\""}) {
    for (std::size_t at = 0; (at = page.body.find(attribute, at)) != std::string::npos;) {
      at += std::string(attribute).size();
      const std::string target = page.body.substr(at, page.body.find('"', at) - at);
      if (target.starts_with("#")) continue;
      EXPECT_EQ(serving.get("/" + target).status, 200) << target;
      ++files;
    }
  }
  EXPECT_GE(files, 3u);
  EXPECT_EQ(serving.get("/page/chat.js").headers.at("content-type"),
            "text/javascript; charset=utf-8");
  EXPECT_EQ(serving.get("/page/none.js").status, 404);
  EXPECT_EQ(serving.get("/page/..%2fpage.cpp").status, 404);
  EXPECT_EQ(serving.post("/", "").status, 405);
  EXPECT_EQ(serving.get("/v1/workers").status, 401);
}

TEST(WebPage, IsNotSentAgainToABrowserThatHasIt) {
  Serving serving = serve();
  const auto get = [&](const std::string& tags) {
    return HttpClient(serving.port).request("GET", "/", "", {"If-None-Match: " + tags});
  };
  const std::string tag = serving.get("/").headers.at("etag");
  for (const std::string& tags : {tag, "\"a\", W/" + tag + ", \"b\"", "*"s}) {
    const HttpReply same = get(tags);
    EXPECT_EQ(same.status, 304) << tags;
    EXPECT_EQ(same.body, "");
    EXPECT_EQ(same.headers.at("etag"), tag);
  }
  EXPECT_EQ(get("\"another\"").status, 200);
}

TEST(Kill, IsRefusedUnlessTheSettingAllowsIt) {
  Serving serving = serve();
  const json before = serving.worker();
  EXPECT_EQ(before["kill_allowed"], false);
  const HttpReply refused = serving.post("/v1/workers/builtin-0/kill", "");
  EXPECT_EQ(refused.status, 403);
  EXPECT_NE(refused.body.find("server.allow_kill"), std::string::npos) << refused.body;
  EXPECT_EQ(serving.worker()["pid"], before["pid"]);
}

TEST(Kill, IsACrashThatTheStreamSurvives) {
  Serving serving = serve({"server.allow_kill=true"});
  const json wanted = {{"prompt", "slow"}, {"max_tokens", 200}, {"seed", 5}};
  const std::string expected = json::parse(serving.complete(wanted).body)["choices"][0]["text"];
  const json before = serving.worker();
  EXPECT_EQ(before["kill_allowed"], true);
  json body;
  std::thread client([&] { body = json::parse(serving.complete(wanted).body); });
  EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 1; }));
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/kill", "").status, 202);
  client.join();
  EXPECT_EQ(body["choices"][0]["text"], expected);
  const json after = serving.worker();
  EXPECT_NE(after["pid"], before["pid"]);
  EXPECT_EQ(after["last_death"], "killed by signal 9 (SIGKILL)");
  EXPECT_EQ(after["last_death_cause"], "signal");
  EXPECT_EQ(after["recovered_requests"], 1);
  EXPECT_EQ(serving.post("/v1/workers/nobody/kill", "").status, 404);
}

TEST(Kill, ForeignPagesAndCallersWithoutTheKeyCant) {
  Serving serving = serve({"server.allow_kill=true", "server.api_key=secret"});
  const auto kill = [&](const std::vector<std::string>& fields) {
    return serving.post("/v1/workers/builtin-0/kill", "", fields).status;
  };
  EXPECT_EQ(kill({}), 401);
  const std::string key = "Authorization: Bearer secret";
  EXPECT_EQ(kill({key, "Origin: http://elsewhere.example"}), 403);
  EXPECT_EQ(kill({key, "Origin: http://127.0.0.1:" + std::to_string(serving.port)}), 202);
}

TEST(Kill, OnlyAProcessThatServesIsKilled) {
  Serving serving = serve({"server.allow_kill=true"}, {{"FAKE_LOAD_MS", "1500"}});
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/kill", "").status, 202);
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["state"] == "loading"; }));
  const HttpReply refused = serving.post("/v1/workers/builtin-0/kill", "");
  EXPECT_EQ(refused.status, 409);
  EXPECT_NE(refused.body.find("only a ready one can be killed"), std::string::npos) << refused.body;
}

}  // namespace
}  // namespace bulkhead::test
