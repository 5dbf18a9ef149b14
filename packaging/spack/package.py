# SPDX-License-Identifier: Apache-2.0
# This project's tests read this recipe, and don't build it.

from spack.package import *


class PyHorovodData(PythonPackage):
    """One process of a Horovod job runs a tf.data pipeline once; every rank gets only its own batches, over MPI, as a plain
    tf.data.Dataset."""

    pypi = "horovod_data/horovod_data-0.2.0.tar.gz"

    license("Apache-2.0")

    version("0.2.0")

    depends_on("cxx", type="build")
    depends_on("python@3.9:", type=("build", "run"))
    depends_on("py-setuptools@65:", type="build")
    depends_on("py-wheel", type="build")
    depends_on("cmake@3.20:3", type="build")
    depends_on("ninja", type="build")
    depends_on("xxhash", type="build")
    depends_on("mpi", type=("build", "link", "run"))
    depends_on("py-tensorflow@2.15:", type=("build", "link", "run"))
    depends_on("py-numpy", type=("build", "run"))
    depends_on("py-horovod frameworks=tensorflow controllers=mpi", type="run", when="+horovod")

    variant("horovod", default=True, description="With Horovod, which trains")

    def setup_build_environment(self, env):
        env.set("MPICC", self.spec["mpi"].mpicc)
