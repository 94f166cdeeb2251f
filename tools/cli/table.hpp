// A table on a terminal: columns as wide as their widest cell, two blanks between them.
#pragma once

#include <string>
#include <vector>

namespace bulkhead::cli {

// `rows`: the titles first; each as long as the first. Cells hold no control characters.
std::string table(const std::vector<std::vector<std::string>>& rows);

// A text of an answer as a cell: control characters are escaped, tabs are blanks; "-" for none.
std::string cell(const std::string& text);

// Fit for a part of a URL's path.
std::string url_encoded(const std::string& text);

}  // namespace bulkhead::cli
