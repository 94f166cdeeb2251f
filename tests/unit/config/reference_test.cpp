// Settings as YAML: the printed reference, and the settings that a daemon says it runs with.
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config.hpp"
#include "tests/unit/config/settings_file.hpp"

namespace bulkhead::config {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

TEST(Reference, ShippedFileIsWhatTheTablePrints) {
  std::ifstream stream(std::string(BULKHEAD_SOURCE_DIR) + "/config/runtime.yaml", std::ios::binary);
  ASSERT_TRUE(stream) << "config/runtime.yaml is missing";
  std::stringstream shipped;
  shipped << stream.rdbuf();
  EXPECT_EQ(shipped.str(), reference_yaml())
      << "write it anew: cmake --build build/release --target reference";
}

TEST(Reference, LoadsToTheDefaultsWithoutANotice) {
  const File file(reference_yaml());
  const Result<Loaded> loaded = load({file.path(), {}});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  EXPECT_THAT(loaded->notices, IsEmpty());
  EXPECT_EQ(all_texts(loaded->settings), all_texts(Settings{}));
  ASSERT_THAT(loaded->settings.models, SizeIs(1));
  EXPECT_EQ(loaded->settings.models[0].path, "builtin");
  EXPECT_EQ(loaded->settings.models[0].workers, 1U);
}

TEST(Reference, HasEveryKeyOnce) {
  const std::string text = reference_yaml();
  for (const Setting& setting : settings_table()) {
    const std::string key = setting.key;
    EXPECT_THAT(text, HasSubstr(key.substr(key.rfind('.') + 1) + ": ")) << key;
    EXPECT_THAT(text, HasSubstr(setting.help)) << key;
  }
  for (const ModelSetting& setting : model_settings_table())
    EXPECT_THAT(text, HasSubstr(setting.help));
}

TEST(Reference, SaysWhichSettingsNeedARestart) {
  const std::string text = reference_yaml();
  for (const Setting& setting : settings_table()) {
    const bool told =
        text.find(std::string(setting.help) + " A change takes effect when the daemon restarts") !=
        std::string::npos;
    EXPECT_EQ(told, setting.reload == Reload::kRestart) << setting.key;
  }
}

TEST(Reference, SettingsAreShownWithoutKeys) {
  Settings settings;
  EXPECT_THAT(settings_yaml(settings), HasSubstr("  api_key: \"\"\n"));
  settings.server.api_key = "operators-secret";
  settings.server.keys = {"alice clients-secret streams=4", "in no form that-is-known"};
  settings.models.resize(2);
  settings.models[0].name = "one";
  settings.models[0].path = "a \"b\".gguf";
  settings.models[1].name = "two";
  const std::string text = settings_yaml(settings);
  EXPECT_THAT(text, Not(HasSubstr("secret")));
  EXPECT_THAT(text, Not(HasSubstr("that-is-known")));
  EXPECT_THAT(text, HasSubstr("  api_key: \"(hidden)\"\n"));
  EXPECT_THAT(text, HasSubstr("  keys: [\"alice (hidden) streams=4\", \"(hidden)\"]\n"));
  EXPECT_THAT(text, HasSubstr("  - name: one\n    path: \"a \\\"b\\\".gguf\"\n"));
  EXPECT_THAT(text, HasSubstr("  - name: two\n"));
  for (const Setting& setting : settings_table()) {
    const std::string key = setting.key;
    EXPECT_THAT(text, HasSubstr(key.substr(key.rfind('.') + 1) + ": ")) << key;
  }
}

// Without quotes these texts have another meaning in YAML, alone or at the beginning of a longer
// text.
TEST(Reference, SettingsAreReadBackAsTheyAre) {
  const std::vector<std::string> odd = {"",          "[",
                                        "[a, b]",    "[x",
                                        "{a: b}",    "*",
                                        "*a",        "&a",
                                        "!a",        "!!str",
                                        "|",         ">",
                                        "%a",        "@a",
                                        "`a",        "\"",
                                        "'",         "'a'",
                                        "- a",       "-",
                                        "---",       "...",
                                        "? a",       "?",
                                        ": a",       "a: b",
                                        "a:",        "a #b",
                                        "#a",        ",",
                                        "a,b",       "]",
                                        "}",         "true",
                                        "No",        "off",
                                        "null",      "NULL",
                                        "~",         "12",
                                        "1e5",       "-1",
                                        ".5",        ".inf",
                                        "0x1f",      "0o17",
                                        "1_000",     "12:30",
                                        "=",         "<<",
                                        " a",        "a ",
                                        "a  b",      "\t",
                                        "a\nb",      "a\n",
                                        "\r\n",      "\x1b[0m",
                                        "\x7f",      "\\",
                                        "a\\nb",     "gr\xc3\xbc\xc3\x9f",
                                        "2001-12-14"};
  Settings settings;
  settings.models.resize(odd.size());
  for (std::size_t i = 0; i < odd.size(); ++i) {
    ModelSettings& model = settings.models[i];
    model.name = odd[i];
    model.path = odd[i].empty() ? "x" : odd[i];
    model.chat_template = odd[i];
    model.draft = odd[i];
    model.aliases = {"alias " + std::to_string(i) + odd[i], odd[i] + " alias " + std::to_string(i)};
  }
  settings.server.allowed_origins = {"*", "https://chat.example.org:8080"};
  settings.isolation.journal_path = "[journal]";
  const std::string yaml = settings_yaml(settings);
  const File file(yaml);
  const Result<Loaded> loaded = load({file.path(), {}});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message() << "\n" << yaml;
  EXPECT_EQ(all_texts(loaded->settings), all_texts(settings));
  EXPECT_EQ(loaded->settings.server.allowed_origins, settings.server.allowed_origins);
  ASSERT_EQ(loaded->settings.models.size(), odd.size());
  for (std::size_t i = 0; i < odd.size(); ++i) {
    const ModelSettings& got = loaded->settings.models[i];
    const ModelSettings& wanted = settings.models[i];
    EXPECT_EQ(got.name, wanted.name);
    EXPECT_EQ(got.path, wanted.path);
    EXPECT_EQ(got.chat_template, wanted.chat_template);
    EXPECT_EQ(got.draft, wanted.draft);
    EXPECT_EQ(got.aliases, wanted.aliases);
  }
}

// Another reader of YAML must not read a text as a number or a truth value.
TEST(Reference, TextsAreQuotedWhereTheyWouldBeSomethingElse) {
  Settings settings;
  settings.models.resize(1);
  for (const char* text : {"true", "No", "12", "1e5", "-1", ".inf", "null", "[a]", "2001-12-14"}) {
    settings.models[0].name = text;
    EXPECT_THAT(settings_yaml(settings), HasSubstr("name: \"" + std::string(text) + "\"\n"));
  }
  for (const char* text : {"llama", "/srv/model-7b.q8_0.gguf", "127.0.0.1"}) {
    settings.models[0].name = text;
    EXPECT_THAT(settings_yaml(settings), HasSubstr("name: " + std::string(text) + "\n"));
  }
  EXPECT_THAT(settings_yaml(settings), HasSubstr("\n  port: "));
}

}  // namespace
}  // namespace bulkhead::config
