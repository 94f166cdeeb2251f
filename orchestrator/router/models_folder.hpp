// Makes models of the GGUF files in server.models_folder, each of which is loaded at its first use.
//
// The files of subfolders count, down to kMostDepth. A split model counts by its first part. A
// model has its file's name, without the number of the part, or its path in the folder if another
// model has that name. Projectors (mmproj*) and hidden files are left out. Looking at the files may
// take for ever if the folder is on a network mount that hangs.
#pragma once

#include <set>
#include <string>

#include "config/base/error.hpp"
#include "config/settings.hpp"

namespace bulkhead::orchestrator {

// Adds the folder's models to `settings.models`, each with its name and its path in normal form,
// except files that are there already. kNotFound: the folder can't be read.
Status add_models_of_folder(config::Settings& settings);

// Returns the path, in normal form, of the file that `name` means: `name` is its path, or its path
// in the folder. Does not look whether the file exists. kNotFound: `name` can be no model of the
// folder, or there is no folder.
Result<std::string> file_in_folder(const std::string& folder, const std::string& name);

// Makes a model of a file of the folder; `file` is its path in normal form. `taken`: names of other
// models.
config::ModelSettings model_of_file(const std::string& folder, const std::string& file,
                                    const std::set<std::string>& taken);

}  // namespace bulkhead::orchestrator
