// A folder of models (server.models_folder): its files are listed, load at their first use, and are found later by name
// or path.
#include <algorithm>
#include <fstream>
#include <sstream>

#include "tests/integration/run_time_models.hpp"
#include "tests/integration/tool.hpp"

namespace bulkhead::test {
namespace {

TEST_F(RunTimeModels, AFolderIsListedAndItsModelsLoadAtFirstUse) {
  make("deep/four-00001-of-00002.gguf");
  make("deep/four-00002-of-00002.gguf");
  make("mmproj-one.gguf");
  make("not-\xff-utf8.gguf");
  std::ofstream(folder_ / "notes.txt") << "no model";
  std::filesystem::create_symlink("nowhere", folder_ / "dangling.gguf");
  std::filesystem::create_symlink("round", folder_ / "round");
  const Serving serving =
      serve({"server.models_folder=" + folder_.string(), "models.0.name=first",
             "models.0.path=" + (folder_ / "one.gguf").string(), "models.0.aliases=gpt-4o,Erste"});
  EXPECT_NE(serving.daemon->log().find("utf8.gguf is left out"), std::string::npos)
      << serving.daemon->log();
  std::vector<std::string> ids;
  const json listed = json::parse(serving.get("/v1/models").body);
  for (const json& model : listed["data"])
    ids.push_back(model["id"]);
  std::ranges::sort(ids);
  EXPECT_EQ(ids, (std::vector<std::string>{"first", "four", "three", "two"}));
  for (const char* name : {"two", "four", "GPT-4o", "erste", "first"})
    EXPECT_EQ(serving.complete(ask(name)).status, 200) << name;
  EXPECT_EQ(serving.complete(ask("unheard-of")).status, 404);

  // A file that was added later is found by its name in the folder or its path; files outside the folder are not.
  make("deep/new.gguf");
  make("deep/two.gguf");
  make("late.1.gguf");
  EXPECT_EQ(serving.complete(ask("new")).status, 404);
  EXPECT_EQ(json::parse(act(serving, "load", "deep/new.gguf").body)["id"], "new");
  EXPECT_EQ(json::parse(act(serving, "load", "late.1").body)["id"], "late.1");
  EXPECT_EQ(serving.complete(ask("new")).status, 200);
  const HttpReply same_name = act(serving, "load", (folder_ / "deep/two.gguf").string());
  EXPECT_EQ(same_name.status, 202);
  EXPECT_EQ(json::parse(same_name.body)["id"], "deep/two.gguf");
  for (const std::string& elsewhere : {"../one.gguf"s, "/etc/passwd"s, "/tmp/x.gguf"s, "deep"s,
                                       "notes.txt"s, "notes.txt\0.gguf"s, ""s})
    EXPECT_GE(act(serving, "load", elsewhere).status, 400) << elsewhere;
  const HttpReply none = act(serving, "load", "none");
  EXPECT_EQ(none.status, 404);
  EXPECT_NE(
      none.body.find("'none' does not exist; " + (folder_ / "none.gguf").string() + " is no file"),
      std::string::npos)
      << none.body;
  EXPECT_EQ(serving.post("/v1/models/load", "[1]").status, 400);
  EXPECT_EQ(serving.post("/v1/models/load", R"({"model": 3})").status, 400);
}

TEST_F(RunTimeModels, AFileThatCameLaterKeepsItsNameAtAReload) {
  const Serving serving = serve({"server.models_folder=" + folder_.string(), "models.0.name=first",
                                 "models.0.path=" + (folder_ / "one.gguf").string()});
  make("deep/one.gguf");
  EXPECT_EQ(json::parse(act(serving, "load", "deep/one.gguf").body)["id"], "one");
  std::filesystem::remove(folder_ / "two.gguf");
  serving.daemon->signal(SIGHUP);
  EXPECT_TRUE(Serving::eventually([&] { return serving.get("/v1/models/two").status == 404; }));
  make("two.gguf");
  EXPECT_EQ(json::parse(act(serving, "load", "two").body)["id"], "two")
      << "the removed model has no name any more";
  serving.daemon->signal(SIGHUP);
  EXPECT_TRUE(Serving::eventually([&] {
    return serving.daemon->log().find("reload: nothing has changed") != std::string::npos;
  })) << serving.daemon->log();
}

TEST_F(RunTimeModels, OfAFolderAThousandModelsAreServed) {
  for (int i = 3; i < 1000; ++i)
    std::filesystem::create_hard_link(folder_ / "one.gguf",
                                      folder_ / (std::to_string(i) + ".gguf"));
  const std::string setting = "server.models_folder=" + folder_.string();
  const auto models_of = [&](const Serving& serving) {
    return json::parse(serving.get("/v1/models").body)["data"].size();
  };
  const Serving all = serve({setting});
  EXPECT_EQ(models_of(all), 1000U);
  EXPECT_EQ(all.daemon->log().find("are left out"), std::string::npos) << all.daemon->log();
  std::size_t states = 0;
  std::istringstream metrics(all.get("/metrics").body);
  for (std::string line; std::getline(metrics, line);)
    states += line.starts_with("bulkhead_worker_state{") ? 1U : 0U;
  EXPECT_EQ(states, 1000U);
  make("more.gguf");
  const Serving most = serve({setting});
  EXPECT_EQ(models_of(most), 1000U);
  EXPECT_NE(most.daemon->log().find("are left out"), std::string::npos) << most.daemon->log();
}

// The folder may not be mounted yet. The built-in model must not answer for the models that clients ask for.
TEST_F(RunTimeModels, AFolderWithoutModelsEndsTheDaemon) {
  const std::filesystem::path empty = folder_ / "empty";
  std::filesystem::create_directories(empty);
  const std::string start =
      "timeout 60 " BULKHEADD " --set server.port=0 --set server.models_folder=" + empty.string();
  const Outcome none = run_shell(start);
  EXPECT_EQ(none.code, 1) << none.out;
  EXPECT_NE(none.out.find(empty.string() + " has no GGUF file"), std::string::npos) << none.out;
  const Serving named = serve({"server.models_folder=" + empty.string(), "models.0.path=builtin"});
  EXPECT_EQ(named.complete({{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
}

TEST_F(RunTimeModels, AFolderThatMayNotBeReadIsNotTakenForAnEmptyOne) {
  const std::filesystem::path closed = folder_ / "closed";
  std::filesystem::create_directories(closed);
  std::filesystem::permissions(closed, std::filesystem::perms::none);
  // The superuser may read it unless these powers are taken away.
  const std::string powerless =
      ::geteuid() == 0 ? "setpriv --bounding-set=-dac_override,-dac_read_search " : "";
  const Outcome none = run_shell(
      powerless +
      "timeout 60 " BULKHEADD " --set server.port=0 --set server.models_folder=" + closed.string());
  std::filesystem::permissions(closed, std::filesystem::perms::owner_all);
  EXPECT_EQ(none.code, 1) << none.out;
  EXPECT_NE(none.out.find("can't be read: Permission denied"), std::string::npos) << none.out;
}

TEST_F(RunTimeModels, AFolderMayBeGivenInAnyForm) {
  const std::filesystem::path form = folder_ / "deep" / ".." / ".." / folder_.filename();
  make("deep/one.gguf");
  const Serving serving =
      serve({"server.models_folder=" + form.string(), "models.0.name=first",
             "models.0.path=" + (form / "one.gguf").string(), "models.0.aliases=new"});
  const std::size_t listed = json::parse(serving.get("/v1/models").body)["data"].size();
  EXPECT_EQ(listed, 4U);
  // Files that are already served, and one whose name is also another model's.
  EXPECT_EQ(json::parse(act(serving, "load", "one.gguf").body)["id"], "first");
  EXPECT_EQ(json::parse(act(serving, "load", "two.gguf").body)["id"], "two");
  EXPECT_EQ(json::parse(act(serving, "load", (folder_ / "two.gguf").string()).body)["id"], "two");
  EXPECT_EQ(json::parse(serving.get("/v1/models").body)["data"].size(), listed);
  make("deep/new.gguf");
  EXPECT_EQ(json::parse(act(serving, "load", "deep/new.gguf").body)["id"], "deep/new.gguf");
}

}  // namespace
}  // namespace bulkhead::test
