#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "sim/cli/grammar.h"

int main(int argc, char** argv) {
  const int status = equipoise::run_program(argc, argv);
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
#ifndef __SANITIZE_ADDRESS__  // its leak check runs at a normal exit
  // Threads of libraries are not waited for: with too little address space OpenBLAS's ask for memory forever.
  std::_Exit(status);
#endif
  return status;
}
