#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "kernels/collectives.h"
#include "sim/cli/grammar.h"
#include "sim/execution/launch.h"

int main(int argc, char** argv) {
  const int status = equipoise::run_program(argc, argv);
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  if (status == 0)
    equipoise::kernels::finish_mpi();  // a rank that failed alone would wait there for the others
#ifdef __SANITIZE_ADDRESS__
  // A normal exit of a rank that failed alone would wait for the others.
  if (status != 0 && equipoise::execution::under_launcher()) std::_Exit(status);
#endif
#ifndef __SANITIZE_ADDRESS__  // its leak check runs at a normal exit
  // Threads of libraries are not waited for: with too little address space OpenBLAS's ask for memory forever.
  std::_Exit(status);
#endif
  return status;
}
