"""What setup.cfg cannot say: the configurations of `configs/` are in the package too, as hmcvi.configs."""

from setuptools import find_packages, setup

CONFIGS = {"hmcvi.configs": "configs", "hmcvi.configs.table1": "configs/table1"}

setup(
    packages=[*find_packages(include=["hmcvi", "hmcvi.*"]), *CONFIGS],
    package_dir=CONFIGS,
    package_data={"hmcvi": ["py.typed", "data/*.npz"], **{key: ["*.yaml"] for key in CONFIGS}},
)
