#include "config/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/reload.hpp"
#include "config/settings_table.hpp"
#include "tests/unit/config/settings_file.hpp"

namespace bulkhead::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

std::string error_of(const std::string& yaml, const std::vector<std::string>& assignments = {}) {
  const File file(yaml);
  const Result<Loaded> loaded = load({file.path(), assignments});
  if (loaded.ok()) return "no error";
  std::string message = loaded.error().message();
  if (message.starts_with(file.path())) message.replace(0, file.path().size(), "FILE");
  return message;
}

std::string error_of_set(const std::string& assignment) {
  const Result<Loaded> loaded = load({"", {assignment}});
  return loaded.ok() ? "no error" : loaded.error().message();
}

// Every row reaches a member of its own: changing one key changes that key's text and no other's.
TEST(Table, EachKeyReachesItsOwnMember) {
  const Settings defaults;
  for (const Setting& setting : settings_table()) {
    const std::string before = text_of(setting, defaults);
    std::string other;
    if (before == "true" || before == "false") {
      other = before == "true" ? "false" : "true";
    } else if (!setting.choices.empty()) {
      other = before == setting.choices[0] ? setting.choices[1] : setting.choices[0];
    } else if (before.starts_with("[")) {
      other = "[7]";
    } else if (std::holds_alternative<Reach<Settings, std::string>>(setting.reach)) {
      other = "other text";
    } else {
      other =
          std::to_string(setting.power_of_two ? 2 * std::stoul(before) : std::stoul(before) + 3);
    }
    Settings changed;
    ASSERT_TRUE(assign(changed, std::string(setting.key) + "=" + other).ok()) << setting.key;
    for (const Setting& each : settings_table()) {
      EXPECT_EQ(text_of(each, changed), &each == &setting ? other : text_of(each, defaults))
          << each.key << " after setting " << setting.key;
    }
  }
}

TEST(Table, DefaultsKeepTheirOwnLimits) {
  for (const std::string& assignment : all_texts(Settings{})) {
    Settings settings;
    const Status status = assign(settings, assignment);
    EXPECT_TRUE(status.ok()) << assignment;
  }
}

TEST(Load, NothingGivenIsTheDefaults) {
  const Result<Loaded> loaded = load({});
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(all_texts(loaded->settings), all_texts(Settings{}));
  EXPECT_THAT(loaded->settings.models, IsEmpty());
  EXPECT_THAT(loaded->notices, IsEmpty());
}

TEST(Load, FileThenAssignmentsInOrder) {
  const File file(
      "server:\n  port: 9000\n  api_key: \"a, [b]\"\n"
      "models:\n  - path: /m/one.gguf\n    name: one\n  - path: /m/two.gguf\n    workers: 2\n"
      "ipc: {transport: stdio, ring_kib: 256}\n"
      "gpu_optimizations:\n  memory_pool:\n    warmup_sizes:\n      - 16\n      - 64\n"
      "log:\n");
  const Result<Loaded> loaded =
      load({file.path(),
            {"server.port=9001", "server.port = 9002", "models.1.name=two", "models.2.path=builtin",
             "engine.kv_type=F32"}});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  const Settings& settings = loaded->settings;
  EXPECT_EQ(settings.server.port, 9002U);
  EXPECT_EQ(settings.server.api_key, "a, [b]");
  ASSERT_THAT(settings.models, SizeIs(3));
  EXPECT_EQ(settings.models[0].name, "one");
  EXPECT_EQ(settings.models[1].name, "two");
  EXPECT_EQ(settings.models[1].workers, 2U);
  EXPECT_EQ(settings.models[2].path, "builtin");
  EXPECT_EQ(settings.ipc.transport, Transport::kStdio);
  EXPECT_EQ(settings.ipc.ring_kib, 256U);
  EXPECT_THAT(settings.gpu_optimizations.memory_pool.warmup_sizes, ElementsAre(16, 64));
  EXPECT_EQ(settings.engine.kv_type, KvType::kF32);
}

TEST(Load, EmptyAndCommentOnlyFilesAreDefaults) {
  for (const char* text : {"", "# nothing\n", "---\n", "server:\n  # port: 1\n"}) {
    EXPECT_EQ(error_of(text), "no error") << text;
  }
}

TEST(Load, ListsInAssignments) {
  const auto warmup = [](const std::string& value) -> std::vector<std::uint32_t> {
    const auto loaded = load({"", {"gpu_optimizations.memory_pool.warmup_sizes=" + value}});
    return loaded.ok() ? loaded->settings.gpu_optimizations.memory_pool.warmup_sizes
                       : std::vector<std::uint32_t>{0};
  };
  EXPECT_THAT(warmup("[32, 128]"), ElementsAre(32, 128));
  EXPECT_THAT(warmup("32,128"), ElementsAre(32, 128));
  EXPECT_THAT(warmup("64"), ElementsAre(64));
  EXPECT_THAT(warmup("[]"), IsEmpty());
  EXPECT_THAT(warmup("32,,64"), ElementsAre(0));  // the value was refused
  EXPECT_THAT(warmup("32,"), ElementsAre(0));
  EXPECT_THAT(warmup("[32"), ElementsAre(0));
}

TEST(Errors, NameFileLineKeyAndTheNearestKnownOne) {
  EXPECT_EQ(error_of("server:\n  host: 127.0.0.1\n  prot: 8080\n"),
            "FILE:3: server.prot: unknown setting; did you mean server.port?");
  EXPECT_EQ(error_of("heap_size_mb: 3\n"),
            "FILE:1: heap_size_mb: unknown setting; did you mean "
            "gpu_optimizations.memory_pool.heap_size_mb?");
  // The section is left out.
  EXPECT_EQ(error_of("port: 80\n"), "FILE:1: port: unknown setting; did you mean server.port?");
  EXPECT_EQ(error_of_set("enabled=false"),
            "--set: enabled: unknown setting; did you mean gpu_optimizations.enabled?");
  EXPECT_EQ(error_of_set("memory_pool.enabled=false"),
            "--set: memory_pool.enabled: unknown setting; did you mean "
            "gpu_optimizations.memory_pool.enabled?");
  EXPECT_EQ(error_of("\ngpu_optimisations:\n  enabled: false\n"),
            "FILE:2: gpu_optimisations: unknown setting; did you mean gpu_optimizations?");
  EXPECT_EQ(error_of("models:\n  - path: a\n    contxt: 5\n"),
            "FILE:3: models.0.contxt: unknown setting; did you mean models.0.context?");
  EXPECT_EQ(error_of_set("engine.maxbatch=4"),
            "--set: engine.maxbatch: unknown setting; did you mean engine.max_batch?");
  EXPECT_EQ(error_of_set("models.0.pth=x"),
            "--set: models.0.pth: unknown setting; did you mean models.0.path?");
}

TEST(Errors, AnAddressToListenOnIsAHostAlone) {
  for (const char* host :
       {"http://127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "localhost:80", "a b"})
    EXPECT_THAT(error_of_set("server.host=" + std::string(host)), HasSubstr("is no address alone"))
        << host;
  EXPECT_THAT(error_of_set("server.host=*"), HasSubstr("write 0.0.0.0"));
  for (const char* host : {"localhost", "::1", "[::1]", "0.0.0.0", "::", "fe80::1%eth0"})
    EXPECT_EQ(error_of_set("server.host=" + std::string(host)), "no error") << host;
}

// A shell leaves the ~ in --set models.0.path=~/model.gguf as it is.
TEST(Errors, NoPathBeginsWithAHomeFolder) {
  for (const char* key : {"models.0.path", "models.0.draft", "models.0.chat_template",
                          "server.models_folder", "isolation.journal_path"})
    EXPECT_THAT(error_of_set(std::string(key) + "=~/x"),
                ::testing::AllOf(HasSubstr(key), HasSubstr("write the whole path")));
}

TEST(KeysMeant, ByAnOptionOfACommandLine) {
  EXPECT_EQ(key_meant_by("port"), "server.port");
  EXPECT_EQ(key_meant_by("max-queue"), "server.max_queue");
  EXPECT_EQ(key_meant_by("context"), "models.0.context");
  EXPECT_EQ(key_meant_by("log-level"), "log.level");
  EXPECT_EQ(key_meant_by("server.host"), "server.host");
  EXPECT_EQ(key_meant_by("models.0.path"), "models.0.path");
  EXPECT_EQ(key_meant_by("server"), "");
  EXPECT_EQ(key_meant_by("ctx-size"), "");
  EXPECT_EQ(key_meant_by("verbose-logging"), "gpu_optimizations.blit_queue.verbose_logging");
}

TEST(Errors, ValuesOutsideTheirKindOrRange) {
  EXPECT_EQ(
      error_of("server:\n  port: 70000\n"),
      "FILE:2: server.port: 70000 is out of range; it must be a whole number from 0 to 65535");
  EXPECT_THAT(error_of("server:\n  port: -1\n"),
              HasSubstr("FILE:2: server.port: '-1' is not a whole number"));
  EXPECT_THAT(error_of("server:\n  port: 80.5\n"), HasSubstr("'80.5' is not a whole number"));
  EXPECT_THAT(error_of("server:\n  port: 99999999999999999999999\n"), HasSubstr("out of range"));
  EXPECT_THAT(error_of("server:\n  port:\n"), HasSubstr("FILE:2: server.port: has no value"));
  EXPECT_THAT(error_of("server:\n  port: [1]\n"), HasSubstr("not a list"));
  EXPECT_THAT(error_of("server:\n  port: {a: 1}\n"), HasSubstr("takes a value, not a section"));
  EXPECT_THAT(error_of("engine:\n  prefill_chunk_alone: 0\n"), HasSubstr("from 1 to"));
  EXPECT_THAT(error_of("isolation:\n  vault: maybe\n"), HasSubstr("'maybe' is not true or false"));
  EXPECT_THAT(error_of("ipc:\n  transport: tcp\n"),
              HasSubstr("FILE:2: ipc.transport: 'tcp' is not shm or stdio"));
  EXPECT_THAT(error_of("ipc:\n  ring_kib: 1000\n"),
              HasSubstr("not a power of two; the nearest are 512 and 1024"));
  EXPECT_THAT(error_of("log:\n  level: loud\n"),
              HasSubstr("trace, debug, info, warn, error or off"));
}

TEST(Errors, ATimelineStaysInTheWorkersFolder) {
  EXPECT_EQ(error_of("gpu_optimizations:\n  trace_file: timeline.json\n"), "no error");
  for (const char* name : {"/tmp/t.json", "../t.json", "a/b", ".."}) {
    EXPECT_THAT(error_of(std::string("gpu_optimizations:\n  trace_file: \"") + name + "\"\n"),
                HasSubstr("gpu_optimizations.trace_file"))
        << name;
  }
}

TEST(Errors, RulesBetweenKeysPointAtTheLineThatBroke) {
  EXPECT_THAT(
      error_of("gpu_optimizations:\n  memory_pool:\n    heap_size_mb: 64\n"),
      StartsWith("FILE:3: gpu_optimizations.memory_pool.warmup_sizes: 128 MiB does not fit"));
  EXPECT_THAT(
      error_of("gpu_optimizations:\n  memory_pool:\n    warmup_sizes: [300]\n"),
      StartsWith("FILE:3: gpu_optimizations.memory_pool.warmup_sizes: 300 MiB does not fit"));
  EXPECT_EQ(error_of("gpu_optimizations:\n  memory_pool:\n    heap_size_mb: 64\n",
                     {"gpu_optimizations.memory_pool.warmup_sizes=64"}),
            "no error");
  EXPECT_THAT(error_of("models:\n  - path: a\n    name: x\n  - path: b\n    name: x\n"),
              StartsWith("FILE:5: models.1.name: 'x' is the name of models.0 already"));
  EXPECT_THAT(error_of("models:\n  - path: x/a.gguf\n  - path: y/a.gguf\n"),
              StartsWith("FILE:3: models.1.path: the model would be called 'a' like models.0; give "
                         "one of them a `name`"));
  EXPECT_EQ(error_of("models:\n  - path: x/a.gguf\n  - path: y/a.gguf\n    name: other\n"),
            "no error");
  EXPECT_THAT(error_of("models:\n  - name: x\n    path: \"\"\n"),
              StartsWith("FILE:3: models.0.path: is empty"));
  EXPECT_THAT(error_of("server:\n  host: \"\"\n"), StartsWith("FILE:2: server.host: is empty"));
}

TEST(Errors, ShapesThatAreNoSettingsFile) {
  EXPECT_THAT(error_of("- a\n- b\n"), HasSubstr("is not a settings file"));
  EXPECT_THAT(error_of("server: 5\n"), HasSubstr("FILE:1: server: is a section"));
  EXPECT_THAT(error_of("models: 5\n"), HasSubstr("FILE:1: models: takes a list"));
  EXPECT_THAT(error_of("models: [a]\n"), HasSubstr("models.0: takes `path: FILE`"));
  EXPECT_THAT(error_of("server:\n  port: 1\n  port: 2\n"),
              HasSubstr("FILE:3: server.port: is given twice"));
  EXPECT_THAT(error_of("server:\n  port: [1\n"), HasSubstr("is not valid YAML"));
  EXPECT_THAT(error_of("server:\n\tport: 1\n"),
              HasSubstr("FILE:2: is not valid YAML: the line is indented with a tab"));
  EXPECT_THAT(error_of("server: {port: 1}\n---\nserver: {port: 2}\n"),
              HasSubstr("more than one YAML document"));
  EXPECT_THAT(error_of(", a: b\n"), HasSubstr("FILE:1: is not valid YAML"));
  EXPECT_THAT(error_of(std::string(2 << 20, '#')), HasSubstr("larger than 1 MiB"));
  EXPECT_THAT(error_of("? [a, b]\n: 1\n"), HasSubstr("plain text"));
}

TEST(Errors, SayWhatOfYamlIsNotRead) {
  EXPECT_THAT(error_of("server:\n  <<: {port: 1}\n"),
              HasSubstr("FILE:2: server.<<: merges are not read"));
  EXPECT_THAT(error_of("models:\n- <<: {path: a}\n"),
              HasSubstr("models.0.<<: merges are not read"));
  EXPECT_THAT(error_of(std::string("\xff\xfel\0o\0g\0:\0", 10)),
              HasSubstr("is UTF-16; save it as"));
}

TEST(Errors, PathsOfTheSandboxAreAbsolute) {
  EXPECT_THAT(error_of_set("isolation.sandbox_paths=rel"),
              HasSubstr("'rel' does not begin with /"));
  EXPECT_THAT(error_of_set("isolation.sandbox_paths=/a:b/c"), HasSubstr("'b/c' does not begin"));
  EXPECT_TRUE(load({"", {"isolation.sandbox_paths=/a::/b:"}}).ok());
}

TEST(Errors, MissingFileAndFolder) {
  const Result<Loaded> missing = load({"/nonexistent/x.yaml", {}});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("/nonexistent/x.yaml: No such file"));
  EXPECT_FALSE(load({"/tmp", {}}).ok());
}

TEST(Errors, Assignments) {
  EXPECT_THAT(error_of_set("server.port"), HasSubstr("is not KEY=VALUE"));
  EXPECT_THAT(error_of_set("server=1"), HasSubstr("is a section"));
  EXPECT_THAT(error_of_set("models=x"), HasSubstr("write models.0.path=FILE"));
  EXPECT_THAT(error_of_set("models.x.path=y"), HasSubstr("write models.0.path=FILE"));
  EXPECT_THAT(error_of_set("models.1.path=y"), HasSubstr("there is no models.0 yet"));
  EXPECT_THAT(error_of_set("models.0.path="), HasSubstr("models.0.path: is empty"));
  EXPECT_THAT(error_of_set("=1"), HasSubstr("'=1' is not KEY=VALUE"));
}

TEST(Models, WithoutAPathItIsTheBuiltInOne) {
  const Result<Loaded> loaded = load({"", {"models.0.workers=2", "models.1.name=second"}});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  ASSERT_EQ(loaded->settings.models.size(), 2U);
  EXPECT_EQ(loaded->settings.models[0].path, "builtin");
  EXPECT_EQ(loaded->settings.models[0].workers, 2U);
  EXPECT_EQ(loaded->settings.models[1].path, "builtin");
}

TEST(Models, AliasesAreNamesOfOneModel) {
  const Result<Loaded> loaded = load({"", {"models.0.name=x", "models.0.aliases=gpt-4o,other"}});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  EXPECT_THAT(loaded->settings.models[0].aliases, ElementsAre("gpt-4o", "other"));
  EXPECT_EQ(error_of("models:\n  - path: a\n    aliases: one\n"), "no error");
  EXPECT_THAT(error_of("models:\n  - path: a\n    aliases: [z, y]\n  - path: b\n    name: y\n"),
              StartsWith("FILE:3: models.0.aliases: 'y' is a name of models.1 already"));
}

TEST(Models, ListsOfTheCommandLineMayHaveQuotesAsInYaml) {
  const Result<Loaded> loaded =
      load({"", {"models.0.name=x", R"(models.0.aliases=["gpt-4o", 'other', it's, "])"}});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  EXPECT_THAT(loaded->settings.models[0].aliases, ElementsAre("gpt-4o", "other", "it's", "\""));
  EXPECT_EQ(error_of_set("server.allowed_origins=[\"https://chat.example.org\"]"), "no error");
}

TEST(Keys, AreDistinguishedAndNeverInErrors) {
  const std::string set = "server.keys=alice s3cret streams=2,bob other";
  const Result<Loaded> loaded = load({"", {set}});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  EXPECT_THAT(loaded->settings.server.keys, ElementsAre("alice s3cret streams=2", "bob other"));
  for (const char* more : {",bob third", ",carol s3cret", ",carol", ",carol s3cret x=1"}) {
    const std::string error = error_of_set(set + more);
    EXPECT_THAT(error, StartsWith("--set: server.keys: ")) << more;
    EXPECT_THAT(error, Not(HasSubstr("s3cret"))) << more;
  }
  EXPECT_THAT(error_of("server:\n  api_key: same\n  keys: [alice same]\n"),
              HasSubstr("that another entry or server.api_key has"));
}

TEST(Keys, ThatNoClientCanSendAreRefused) {
  for (const char* key : {"s3cret\\n", "\\ts3cret", "s3cret ", " s3cret"}) {
    const std::string error = error_of("server:\n  api_key: \"" + std::string(key) + "\"\n");
    EXPECT_THAT(error, HasSubstr("server.api_key: ")) << key;
    EXPECT_THAT(error, HasSubstr("no client can send")) << key;
    EXPECT_THAT(error, Not(HasSubstr("s3cret"))) << key;
  }
  EXPECT_THAT(error_of("server:\n  api_key: a\n  keys: [\"alice s3cret\\n\"]\n"),
              HasSubstr("no client can send"));
  EXPECT_TRUE(load({"", {"server.api_key=two words"}}).ok());
}

TEST(Errors, AFailedAssignmentChangesNothing) {
  Settings settings;
  settings.server.port = 1;
  EXPECT_FALSE(assign(settings, "server.port=70000").ok());
  EXPECT_EQ(settings.server.port, 1U);
}

TEST(Reload, SaysWhatARunningDaemonCanDoAboutAChange) {
  Settings before, after;
  after.server.port = 9000;
  after.server.max_queue = 7;
  after.ipc.ring_kib = 2048;
  after.ipc.flush_tokens = 4;
  after.engine.max_batch = 3;
  after.isolation.standby = 2;
  after.isolation.journal_path = "journal";
  after.log.level = "debug";
  std::vector<std::string> now, workers, restart;
  for (const Change& change : changes(before, after)) {
    (change.reload == config::Reload::kNow       ? now
     : change.reload == config::Reload::kWorkers ? workers
                                                 : restart)
        .push_back(change.key);
  }
  EXPECT_THAT(now, ElementsAre("server.max_queue", "isolation.standby", "log.level"));
  EXPECT_THAT(workers, ElementsAre("ipc.flush_tokens", "engine.max_batch"));
  EXPECT_THAT(restart, ElementsAre("server.port", "ipc.ring_kib", "isolation.journal_path"));
  // Settings that only a restart changes keep their values, and no other setting still differs.
  const Settings merged = reloaded(before, after);
  EXPECT_EQ(merged.server.port, before.server.port);
  EXPECT_EQ(merged.isolation.journal_path, "");
  EXPECT_EQ(merged.server.max_queue, 7U);
  for (const Change& change : changes(merged, after))
    EXPECT_EQ(change.reload, config::Reload::kRestart) << change.key;
  EXPECT_TRUE(changes(after, after).empty());
}

TEST(Notices, ARetiredSettingIsReportedOnceAndTheRestIsRead) {
  const File file("gpu_optimizations:\n  persistent_step: on\n  enabled: false\n");
  const Result<Loaded> loaded =
      load({file.path(), {"gpu_optimizations.persistent_step=auto", "engine.max_batch=3"}});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  EXPECT_FALSE(loaded->settings.gpu_optimizations.enabled);
  EXPECT_EQ(loaded->settings.engine.max_batch, 3U);
  ASSERT_THAT(loaded->notices, SizeIs(1));
  EXPECT_EQ(loaded->notices[0].where, file.path() + ":2");
  EXPECT_THAT(loaded->notices[0].message,
              HasSubstr("gpu_optimizations.persistent_step: no longer exists"));
}

TEST(Notices, SettingsThatChangeNothingSaySo) {
  const Result<Loaded> loaded = load({"", {"engine.numerics=fast"}});
  ASSERT_TRUE(loaded.ok());
  std::vector<std::string> messages;
  for (const Notice& notice : loaded->notices) {
    EXPECT_EQ(notice.where, "--set");
    messages.push_back(notice.message);
  }
  EXPECT_THAT(messages, SizeIs(1));
  EXPECT_THAT(messages, testing::Contains("engine.numerics: no kernel that depends on the batch is "
                                          "faster than those that don't: fast "
                                          "computes as exact does"));
}

TEST(Notices, ADraftModelThatMayNotGuess) {
  const auto notices = [](const std::string& speculation) {
    const Result<Loaded> loaded =
        load({"", {"models.0.draft=small.gguf", "engine.speculation=" + speculation}});
    EXPECT_TRUE(loaded.ok());
    return loaded.ok() ? loaded->notices : std::vector<Notice>();
  };
  EXPECT_THAT(notices("ngram"), SizeIs(0));
  const std::vector<Notice> off = notices("off");
  ASSERT_THAT(off, SizeIs(1));
  EXPECT_THAT(off[0].message, HasSubstr("models.0.draft: has no effect"));
}

TEST(Notices, OpenToTheNetworkWithoutAKey) {
  const auto notices = [](std::vector<std::string> assignments) {
    return load({"", std::move(assignments)})->notices.size();
  };
  EXPECT_EQ(notices({"server.host=0.0.0.0"}), 1U);
  EXPECT_EQ(notices({"server.host=0.0.0.0", "server.api_key=k"}), 0U);
  EXPECT_EQ(notices({"server.host=::1"}), 0U);
  EXPECT_EQ(notices({"server.host=127.evil.example"}),
            1U);  // this is a host's name, and the daemon refuses it
  EXPECT_EQ(notices({"server.keys=alice k"}), 1U);
  EXPECT_EQ(notices({"server.keys=alice k", "server.api_key=o"}), 0U);
}

TEST(WorkerAssignments, CarryAllThatDiffersButNothingOfServerOrModels) {
  const Result<Loaded> loaded = load(
      {"",
       {"server.api_key=secret", "server.port=1", "models.0.path=x", "ipc.transport=stdio",
        "gpu_optimizations.memory_pool.warmup_sizes=[8, 16]",
        "gpu_optimizations.memory_pool.enabled=false", "log.format=json", "engine.kv_type=f32"}});
  ASSERT_TRUE(loaded.ok());
  const std::vector<std::string> assignments = worker_assignments(loaded->settings);
  EXPECT_THAT(assignments,
              ElementsAre("ipc.transport=stdio", "gpu_optimizations.memory_pool.enabled=false",
                          "gpu_optimizations.memory_pool.warmup_sizes=[8, 16]",
                          "engine.kv_type=f32", "log.format=json"));

  // Applied to the defaults, the assignments give the same settings again.
  Settings again;
  for (const std::string& assignment : assignments)
    ASSERT_TRUE(assign(again, assignment).ok()) << assignment;
  Settings expected = loaded->settings;
  expected.server = ServerSettings{};
  EXPECT_EQ(all_texts(again), all_texts(expected));
}

// If the daemon kills the worker as hung before the worker's wait for its device ends, the worker
// can't report which step hung.
TEST(Settings, ADevicesWaitEndsBeforeTheDaemonsPatience) {
  Settings settings;
  for (const std::uint32_t heartbeat : {100U, 10000U, 3600000U}) {
    settings.isolation.heartbeat_timeout_ms = heartbeat;
    EXPECT_LT(device_wait_ms(settings), heartbeat);
    EXPECT_GE(device_wait_ms(settings), heartbeat / 10 * 9);
  }
  settings.gpu_optimizations.command_buffer_ring.timeout_ms = 700;
  EXPECT_EQ(device_wait_ms(settings), 700U);
}

}  // namespace
}  // namespace bulkhead::config
