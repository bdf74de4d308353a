// The manual page, equipoise(1), and the completion of bash, zsh and fish, made from the parser's description
// of the commands.
#pragma once

namespace CLI {
class App;
}

namespace equipoise {

// Adds `completion` and `manual`, which describe the commands that the program has so far.
void add_manual_commands(CLI::App& program);

}  // namespace equipoise
