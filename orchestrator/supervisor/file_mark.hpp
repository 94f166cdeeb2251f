// Distinguishes a model's files from other files that later have their names, without reading them.
#pragma once

#include <string>
#include <string_view>

namespace bulkhead::orchestrator {

// Returns a mark of all files of a model (the parts of a split model are named NAME-00001-of-00003.gguf and so on).
// It consists of device, inode, size, and the times of the last change of content and of the last change of any kind.
// Nobody can set the latter by hand, so the mark also detects other content with the same size and time. "-" if there
// is no file (the built-in model, or a deleted file).
std::string file_mark_of(const std::string& path);

// Returns the part of a model's mark that stands for its setting `chat_template`, because another template makes
// other prompts of the same chats. If the setting is a path, the mark follows the file. Empty for an empty setting.
std::string template_mark_of(const std::string& chat_template);

// Joins both marks. If the file's mark is "-", the result is "-", too.
std::string joined_mark(const std::string& file_mark, const std::string& template_mark);

// Precedes the checksum of the weights in a worker's numerics id.
constexpr std::string_view kWeightsInId = "/weights-";

// Returns whether a numerics id ends with the checksums of a model's content:
// "/weights-0123456789abcdef/file-0123456789abcdef/kv-f16", each once. Files with the same checksums make the same
// tokens.
bool names_content(std::string_view numerics_id);

// Returns what must be equal for a stream to continue in another process: the mark `joined_mark`, or, if the numerics
// id names the content, only the files' size and the template's part of the mark. So a stream continues if a model's
// file was replaced by a copy of it. Compare the numerics ids as well.
std::string content_mark(const std::string& joined_mark, std::string_view numerics_id);

}  // namespace bulkhead::orchestrator
