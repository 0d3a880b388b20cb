"Everything is read from settings.ini, which nbdev reads too."
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

root = Path(__file__).parent
config = ConfigParser(delimiters="=")
config.read(root/"settings.ini", encoding="utf-8")
settings = config["DEFAULT"]

setup(
    name=settings["lib_name"], version=settings["version"], description=settings["description"], keywords=settings["keywords"],
    author=settings["author"], license="Apache-2.0",
    long_description=(root/"README.md").read_text(encoding="utf-8"), long_description_content_type="text/markdown",
    packages=find_packages(include=["vit_plasticity*"]), package_data={"vit_plasticity": ["assets/*"]}, zip_safe=False,
    python_requires=f">={settings['min_python']}",
    install_requires=settings["requirements"].split(), extras_require={name: settings[f"{name}_requirements"].split() for name in ("dev", "docs", "gpt2", "lora", "real", "robustness", "sweep")},
    classifiers=["Development Status :: 3 - Alpha", "Intended Audience :: Science/Research", "Programming Language :: Python :: 3",
                 "Topic :: Scientific/Engineering :: Artificial Intelligence"],
    entry_points={"console_scripts": [settings["console_scripts"]], "nbdev": [f"{settings['lib_name']}={settings['lib_name']}._modidx:d"]},
)
