// Tells a model's files from others that later have their names, without reading them.
#pragma once

#include <string>
#include <string_view>

namespace bulkhead::orchestrator {

// Of all files that the model is of (a split model's parts are named NAME-00001-of-00003.gguf and so on):
// device, inode, size, and the times of the last change of content and of anything. The last cannot be
// set by hand, so that other content under the same size and time is seen, too. "-" where there is no
// file (the built-in model, or one that was deleted).
std::string file_mark_of(const std::string& path);

// The part of a model's mark for its setting `chat_template`, since another template makes other
// prompts of the same chats. If the setting is a path, the mark follows the file. Empty for an
// empty setting.
std::string template_mark_of(const std::string& chat_template);

// Joins both marks; "-" stays "-".
std::string joined_mark(const std::string& file_mark, const std::string& template_mark);

// Precedes the sum of the weights in a worker's numerics id.
constexpr std::string_view kWeightsInId = "/weights-";

// Says whether a numerics id ends with the sums of a model's content:
// "/weights-0123456789abcdef/file-0123456789abcdef/kv-f16", each once. Files of the same sums make the same tokens.
bool names_content(std::string_view numerics_id);

// Returns what must be equal for a stream to go on in another process: the mark `joined_mark`, or, if the numerics id
// names the content, only the files' size and the template's part of the mark. So a stream goes on when a model's file
// was replaced by a copy of it. Compare the numerics ids beside it.
std::string content_mark(const std::string& joined_mark, std::string_view numerics_id);

}  // namespace bulkhead::orchestrator
