# SPDX-License-Identifier: Apache-2.0
"""What EasyBuild says of a recipe, as JSON; run by the Python of an environment that has EasyBuild (scripts/setup.sh recipes).

Its style is checked, and it is parsed with its toolchain and its easyblock. A module system, which only a build needs, is not asked for.
"""

import json
import sys

from easybuild.framework.easyconfig.easyconfig import EasyConfig
from easybuild.framework.easyconfig.style import check_easyconfigs_style
from easybuild.tools import modules
from easybuild.tools.options import set_up_configuration
from easybuild.tools.robot import search_easyconfigs

modules.ModulesTool.check_cmd_avail = lambda self: None
modules.ModulesTool.check_module_function = lambda self, *_, **__: None
modules.ModulesTool.check_version = lambda self: None
modules.ModulesTool.set_and_check_version = lambda self: None
modules.ModulesTool.exist = lambda self, names, **_: [False for _ in names]
modules.ModulesTool.check_module_path = lambda self: None
modules.ModulesTool.available = lambda self, *_, **__: []

(path,) = sys.argv[1:]
arguments = ["--modules-tool=EnvironmentModules", "--module-syntax=Tcl", "--ignore-osdeps",
             "--allow-use-as-root-and-accept-consequences"]  # fmt: skip
set_up_configuration(args=arguments, silent=True)
style = check_easyconfigs_style([path])
recipe = EasyConfig(path)
needed = {}
for dependency in recipe.all_dependencies:
    name = f"{dependency['name']}-{dependency['version']}"
    chain = dependency["toolchain"]
    needed[name] = f"{chain['name']}-{chain['version']}"
print(json.dumps({"style": style, "name": recipe.name, "version": recipe.version, "easyblock": recipe["easyblock"], "needs": needed}))
