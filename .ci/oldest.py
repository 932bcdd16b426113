"""Print the oldest versions that pyproject.toml allows, as constraints for pip."""

import re
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
wanted = [*project["dependencies"], *extras["dataframe"], *extras["distributed"]]
print("\n".join(re.sub(r"\[.*?\]", "", each).replace(">=", "==") for each in wanted))
