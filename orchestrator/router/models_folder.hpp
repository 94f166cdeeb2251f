// Makes models from the GGUF files in server.models_folder. Each is loaded at its first use.
//
// It includes the files of subfolders, down to kMostDepth. A split model is represented by its first part. A model
// has its file's name, without the number of the part; if another model has that name, it has its path in the folder.
// Projectors (mmproj*), hidden files and those whose names are not UTF-8 are left out. Reading the folder may hang for
// ever if it is on a network mount that hangs.
#pragma once

#include <set>
#include <string>

#include "config/base/error.hpp"
#include "config/config.hpp"
#include "config/settings.hpp"

namespace bulkhead::orchestrator {

// Adds the folder's models to the settings' models, each with its name and its normalised path, except for files that
// are there already; a notice names what is left out. kNotFound: the folder can't be read.
Status add_models_of_folder(config::Loaded& loaded);

// Returns the normalised path of the file that `name` names: `name` is its path, or its path in the folder, and may
// lack ".gguf". Does not check whether the file exists. kNotFound: `name` can't be a model in the folder, or there is
// no folder.
Result<std::string> file_in_folder(const std::string& folder, const std::string& name);

// Makes a model from a file of the folder; `file` is its normalised path. `taken` has the names of other models.
config::ModelSettings model_of_file(const std::string& folder, const std::string& file,
                                    const std::set<std::string>& taken);

}  // namespace bulkhead::orchestrator
