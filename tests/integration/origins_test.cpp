// Tests which web pages, Host names and addresses the server accepts requests from.
#include <string>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

TEST(Methods, ARefusalNamesTheAllowedOnes) {
  Serving serving = serve();
  HttpReply reply = serving.get("/v1/completions");
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.headers["allow"], "POST, OPTIONS");
  HttpClient client(serving.port);
  reply = client.request("OPTIONS", "/v1/models");
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.headers["allow"], "GET, HEAD, OPTIONS");
  EXPECT_EQ(reply.headers.count("access-control-allow-origin"), 0U);
}

TEST(Origin, PagesThatAreAllowedMayCallAndReadTheAnswer) {
  Serving serving = serve({"server.api_key=secret", "server.allowed_origins=https://chat.example"});
  const std::string page = "Origin: https://chat.example";
  HttpReply reply = HttpClient(serving.port)
                        .request("OPTIONS", "/v1/chat/completions", "",
                                 {page, "Access-Control-Request-Method: POST",
                                  "Access-Control-Request-Headers: authorization,content-type"});
  EXPECT_EQ(reply.status, 204) << "a browser asks without the key";
  EXPECT_EQ(reply.headers["access-control-allow-origin"], "https://chat.example");
  EXPECT_EQ(reply.headers["access-control-allow-headers"], "authorization,content-type");
  EXPECT_NE(reply.headers["access-control-allow-methods"].find("POST"), std::string::npos);

  const std::string key = "Authorization: Bearer secret";
  for (const char* body :
       {R"({"prompt":"x","max_tokens":1})", R"({"prompt":"x","max_tokens":1,"stream":true})"}) {
    reply = serving.post("/v1/completions", body, {page, key});
    EXPECT_EQ(reply.status, 200) << body;
    EXPECT_EQ(reply.headers["access-control-allow-origin"], "https://chat.example") << body;
  }
  EXPECT_EQ(serving.post("/v1/completions", "{}", {page}).status, 401);
  // A body that is refused before it is read: without this field, the page would see no reason.
  reply = serving.post("/v1/completions", "{}", {page, key, "Content-Encoding: gzip"});
  EXPECT_EQ(reply.status, 415);
  EXPECT_EQ(reply.headers["access-control-allow-origin"], "https://chat.example");
  reply = HttpClient(serving.port)
              .request("OPTIONS", "/v1/completions", "",
                       {"Origin: https://other.example", "Access-Control-Request-Method: POST"});
  EXPECT_EQ(reply.status, 403) << "the page, and not the missing key, is why";
  EXPECT_NE(reply.body.find("server.allowed_origins"), std::string::npos) << reply.body;
  EXPECT_FALSE(reply.headers.contains("access-control-allow-origin"));
}

TEST(Origin, AProxysNameIsAcceptedOnceItIsAllowed) {
  const std::string body = R"({"prompt":"x","max_tokens":1})";
  Serving serving = serve({"server.allowed_hosts=[models.example, other.example:81]"});
  EXPECT_EQ(serving.post("/v1/completions", body, {"Host: Models.example"}).status, 200);
  EXPECT_EQ(serving.post("/v1/completions", body, {"Host: other.example:81"}).status, 200);
  HttpReply reply = serving.post("/v1/completions", body, {"Host: evil.example"});
  EXPECT_EQ(reply.status, 403);
  EXPECT_NE(reply.body.find("server.allowed_hosts"), std::string::npos) << reply.body;
}

TEST(Origin, ForeignPagesAndNamesAreRefused) {
  Serving serving = serve();
  std::string body = R"({"prompt":"x","max_tokens":1})";
  std::string port = std::to_string(serving.port);
  EXPECT_EQ(serving.post("/v1/completions", body, {"Origin: http://evil.example"}).status, 403);
  EXPECT_EQ(serving.post("/v1/completions", body, {"Origin: null"}).status, 403);
  EXPECT_EQ(serving.post("/v1/completions", body, {"Origin: http://localhost:1"}).status, 403);
  EXPECT_EQ(serving.post("/v1/completions", body, {"Host: evil.example:" + port}).status, 403);
  // The Host of a request through `ssh -L 9000:localhost:PORT`.
  EXPECT_EQ(serving.post("/v1/completions", body, {"Host: localhost:9000"}).status, 200);
  EXPECT_EQ(
      serving.post("/v1/workers/builtin-0/restart", "", {"Origin: http://evil.example"}).status,
      403);
  EXPECT_EQ(serving
                .post("/v1/completions", body,
                      {"Host: LOCALHOST:" + port, "Origin: http://localhost:" + port})
                .status,
            200);
  EXPECT_EQ(serving.post("/v1/completions", body, {"Host: [::1]:" + port}).status, 200);
  HttpClient old(serving.port);
  old.send_raw("GET /v1/models HTTP/1.0\r\n\r\n");
  const HttpReply nameless = old.receive();
  EXPECT_EQ(nameless.status, 403);
  EXPECT_NE(nameless.body.find("send a Host field"), std::string::npos) << nameless.body;
  EXPECT_EQ(serving.worker()["restarts"], 0);
}

TEST(Loopback, OtherAddressesNeedAKey) {
  Daemon daemon(BULKHEADD, {{"--set", "server.host=0.0.0.0"}, {{"BULKHEAD_WORKER", FAKE_WORKER}}});
  EXPECT_EQ(daemon.wait_for_exit(), 1);
  EXPECT_NE(daemon.log().find("API key"), std::string::npos) << daemon.log();
  // A secret that was made from a file has the file's last line end.
  Daemon lines(BULKHEADD, {{}, {{"BULKHEAD_WORKER", FAKE_WORKER}, {"BULKHEAD_API_KEY", "k\n"}}});
  EXPECT_EQ(lines.wait_for_exit(), 1);
  EXPECT_NE(lines.log().find("BULKHEAD_API_KEY has a line's end"), std::string::npos)
      << lines.log();
  Serving serving =
      serve({"server.host=0.0.0.0", "server.allowed_origins=*"}, {{"BULKHEAD_API_KEY", "k"}});
  EXPECT_EQ(serving.daemon->log().find("BULKHEAD_API_KEY"), std::string::npos)
      << "it asks for a key that it has: " << serving.daemon->log();
  // The server does not know its own names here, so with the key any Host is accepted.
  EXPECT_EQ(serving
                .post("/v1/completions", R"({"prompt":"x","max_tokens":1})",
                      {"Authorization: Bearer k", "Host: gpu-box:80"})
                .status,
            200);
}

}  // namespace
}  // namespace bulkhead::test
